"""A text that a reward model reads: a request that writes nothing, and the head that scores it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from serve.generation import Output


@dataclass(eq=False)
class Scoring:
    """A request for the score of `prompt`, which is a prompt with its whole answer, in tokens.

    To the engine it is a generation that is finished with its prompt.
    """

    prompt: list[int]
    adapter: str
    """The reward model's."""
    deliver: Callable[[Output], None] = lambda output: None
    """Called from the engine's thread once `score` is known, or with the failure."""
    score: float = 0.0
    cached_tokens: int = 0
    cancelled: bool = False

    @property
    def reserved(self) -> int:
        """Tokens of its row."""
        return len(self.prompt)

    @property
    def sequence(self) -> list[int]:
        """All of it is known."""
        return self.prompt

    def accept(self, score: torch.Tensor) -> bool:
        """The prompt has been read; False, since the request does not go on."""
        self.score = float(score)
        self.deliver(Output(finish_reason="stop", prompt_tokens=len(self.prompt)))
        return False

    def fail(self, failure: str) -> None:
        """Tell who waits for it."""
        self.cancelled = True
        self.deliver(Output(finish_reason="stop", failure=failure))


class ScoreHeads:
    """The score heads of reward models, reading along with the language head of the model that they share."""

    def __init__(self, language_head: torch.nn.Module, heads_H: Mapping[str, torch.Tensor]) -> None:
        """`heads_H` are weights of (H,) by the adapters that they belong to; without any nothing is read along."""
        self._heads_H = dict(heads_H)
        self._last_BH = torch.empty(0)
        if self._heads_H:
            language_head.register_forward_pre_hook(self._keep)

    def in_place_of(self, logits_BV: torch.Tensor, adapters: Sequence[str]) -> list[torch.Tensor]:
        """For each row of the pass that has just been: its score where its adapter has a head, otherwise its logits."""
        outputs = list(logits_BV)
        for row, adapter in enumerate(adapters):
            if adapter in self._heads_H:
                outputs[row] = (self._last_BH[row].float() @ self._heads_H[adapter]).cpu()
        return outputs

    def _keep(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._last_BH = inputs[0][0]


def add_reward_model(peft_model: Any, model: Any, folder: Path, name: str) -> tuple[Any, torch.Tensor]:
    """`peft_model`, or a new one of `model`, with the adapter in `folder`, which is a classifier's; and its head, (H,).

    Raises:
        ValueError: it has no score head, or does not fit the model.
    """
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file

    config: Any = PeftConfig.from_pretrained(str(folder))
    config.task_type, config.modules_to_save, config.inference_mode = "CAUSAL_LM", None, True
    weights = load_file(folder / "adapter_model.safetensors")
    heads = [key for key in weights if key.endswith("score.weight")]
    if len(heads) != 1:
        raise ValueError("it has no score head, so it is no reward model")
    head_H = weights.pop(heads[0])[0].to(model.device, torch.float32)
    if peft_model is None:
        peft_model = get_peft_model(model, config, adapter_name=name)
    else:
        peft_model.add_adapter(name, config)
    if unknown := set_peft_model_state_dict(peft_model, weights, adapter_name=name).unexpected_keys:
        raise ValueError(f"the model has no layer for {unknown[0]}")
    return peft_model, head_H
