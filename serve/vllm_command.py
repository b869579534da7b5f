"""The command that starts vLLM with what the base and the adapters of a run need, or the servers that run already."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from retroformer.config.experiment import Experiment
from retroformer.config.sections.train import Generation
from retroformer.endpoint.http_client import NoAnswer, fetch_now, read_key
from retroformer.errors import MissingInput, ServiceError
from retroformer.models.adapter_weights import lora_config
from retroformer.models.embedded import base_model_folder
from retroformer.models.loading import longest_row, model_config
from retroformer.models.precision import base_dtype

from .served_names import ServedNames, VllmAddresses
from .supervisor import HEALTH, PROBE_SECONDS

LONG_ENOUGH = 16_384
"""Tokens of the longest text, unless training has longer ones: vLLM reserves memory for one text of the full length."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `--max-lora-rank`."""
ON_GPU, IN_MEMORY = 8, 64
"""Most adapters in one batch, and most that are kept without reading their files again."""
ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}


def vllm_command(experiment: Experiment, names: ServedNames) -> list[str]:
    """Return `vllm serve` for the base, these adapters, the promoted ones, and those that training makes.

    Raises MissingInput if an adapter cannot be read.
    """
    base = base_model_folder(experiment.train.base_model)
    config = model_config(base).get_text_config()
    copies = (experiment.folder / "promotions" / "adapters").glob("[!.]*")
    rank = max([experiment.train.lora.rank, *map(_rank, copies)])
    context = int(min(config.max_position_embeddings, longest_row(config)))
    longest = min(context, max(LONG_ENOUGH, experiment.train.max_length))
    command = ["vllm", "serve", str(base), "--served-model-name", "base", "--enable-lora"]
    command += ["--dtype", base_dtype(base) if experiment.serve.dtype == "auto" else experiment.serve.dtype]
    command += ["--max-lora-rank", str(min(allowed for allowed in RANKS if allowed >= rank))]
    command += ["--max-loras", str(min(ON_GPU, len(names.adapters) + 2)), "--max-cpu-loras", str(IN_MEMORY)]
    command += ["--max-model-len", str(longest), "--generation-config", "vllm"]
    command += ["--gpu-memory-utilization", f"{experiment.serve.gpu_share:g}"]
    if names.quantization == "nf4":
        command += ["--quantization", "bitsandbytes"]
    if getattr(config, "rope_condense_ratio", None):
        # vLLM does not read LongChat's own key. Without the base of the rotations here, it would have none.
        rope = {"rope_scaling": config.rope_parameters, "max_position_embeddings": config.max_position_embeddings}
        command += ["--hf-overrides", json.dumps(rope)]
    return command


def running_servers(servers: Generation, command: Sequence[str]) -> VllmAddresses:
    """Return the addresses of servers that run already. Raises ServiceError if one does not answer.

    `command` is how to start one.
    """
    urls = []
    for address in (servers.base_url, *servers.replicas):
        urls.append(address.secret_url().rstrip("/").removesuffix("/v1"))
        try:
            fetch_now("GET", f"{urls[-1]}{HEALTH}", PROBE_SECONDS)
        except NoAnswer as error:
            settings = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
            raise ServiceError(
                f"The vLLM server at {address} {error}. Start it with `{settings} {shlex.join(command)}`."
            ) from None
    return VllmAddresses(urls=tuple(urls), key=read_key(servers.api_key_env) or "none")


def _rank(folder: Path) -> int:
    try:
        return int(lora_config(folder).r)
    except (OSError, ValueError) as error:
        raise MissingInput(f"The adapter in {folder} cannot be read: {error}.") from error
