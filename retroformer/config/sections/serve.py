"""The section `serve` of a config."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from retroformer.config.sections.base import BEST_OF, Section
from retroformer.config.sections.train import Generation
from retroformer.endpoint.secrets.url import HttpUrl


class Serve(Section):
    host: str = "127.0.0.1"
    """Address to listen on. Keep loopback unless the server is to be reachable from outside; with keys set
    (`api_key_env`), every route but /health requires one."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port of the OpenAI API; 0: any free port."""
    controller: HttpUrl | None = None
    """Address of a running FastChat controller to register at, such as http://127.0.0.1:21001; its API server then
    reaches the models, too. `retroformer serve --fastchat` starts both itself."""
    adapters: dict[str, Path] = Field(default={})
    """Additional LoRA adapters on the same base model: name to serve under, and a folder or the name of an adapter in
    retroformer/models/adapters."""
    best_of: tuple[Annotated[str, Field(pattern=f"^{BEST_OF}$")], ...] = ()
    """Additional best-of-n names to serve, besides those that the config uses elsewhere. `sft+best8` samples 8 answers
    from `sft` and returns the one with the highest score of the reward model."""
    dtype: Literal["auto", "bfloat16", "float32"] = "float32"
    """Data type of the served weights. With float32 on a CPU, answers at temperature 0 repeat exactly, alone and
    in a batch. auto: the base's own type, or float32 where the hardware has no instructions for bfloat16; with
    `train.preset` it is the default."""
    engine: Literal["own", "vllm"] = "own"
    """Program that computes the answers. vllm: `vllm serve`, which `retroformer serve` starts, or the servers of
    `vllm`."""
    vllm: Generation | None = None
    """vLLM servers that run already and read this machine's disk; None: one is started."""
    gpu_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of a GPU's memory that the server may take, weights included; lower it where training shares the GPU."""
    api_key_env: str | None = None
    """Environment variable that holds comma-separated API keys, one of which every route but /health then requires;
    None: no key is needed."""
    hand_over: bool = False
    """If true, clients of /v1/* may load any adapter on this machine and sample by token ids (needed for `generation`
    of PPO and GRPO)."""

    @model_validator(mode="after")
    def _servers_are_of_the_engine(self) -> Self:
        if self.vllm is not None and self.engine == "own":
            raise ValueError("serve.vllm names servers that nothing uses: set serve.engine=vllm, or leave it out")
        return self
