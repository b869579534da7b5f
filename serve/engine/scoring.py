"""Scoring by a reward model: a request that writes nothing, and the heads that score it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from .generation import Output
from .prefixes import BlockNames


@dataclass(eq=False)
class Scoring:
    """A request for the score of `prompt`: a prompt with its whole answer, in tokens.

    The engine treats it as a generation that finishes with its prompt.
    """

    prompt: list[int]
    adapter: str
    """Adapter of the reward model."""
    deliver: Callable[[Output], None] = lambda output: None
    """Callback on the engine's thread, once `score` is set or the request has failed."""
    score: float = 0.0
    cached_tokens: int = 0
    cancelled: bool = False
    finished: bool = False

    @cached_property
    def names(self) -> BlockNames:
        """Names of the blocks of its sequence, under which the keys and values are stored."""
        return BlockNames(self.adapter)

    @property
    def reserved(self) -> int:
        """Number of tokens in its row."""
        return len(self.prompt)

    @property
    def sequence(self) -> list[int]:
        """Tokens of its row: the prompt, since it writes nothing."""
        return self.prompt

    def accept(self, score: torch.Tensor) -> bool:
        """Set the score and deliver; return False, since the request does not go on."""
        self.score, self.finished = float(score), True
        self.deliver(Output(finish_reason="stop", prompt_tokens=len(self.prompt)))
        return False

    def fail(self, failure: str) -> None:
        """Cancel the request and deliver the failure."""
        self.cancelled = self.finished = True
        self.deliver(Output(finish_reason="stop", failure=failure))


class ScoreHeads:
    """Score heads of reward models, applied to the input of the shared model's language head."""

    def __init__(self, language_head: torch.nn.Module, heads_H: Mapping[str, torch.Tensor]) -> None:
        """Hook `language_head`; `heads_H` are weights (H,) by adapter. Without heads nothing is hooked."""
        self._heads_H = dict(heads_H)
        self._last_BH = torch.empty(0)
        if self._heads_H:
            language_head.register_forward_pre_hook(self._keep)

    def in_place_of(self, logits_BV: torch.Tensor, adapters: Sequence[str]) -> list[torch.Tensor]:
        """Return, for each row of the pass just made, its score if its adapter has a head, otherwise its logits."""
        outputs = list(logits_BV)
        for row, adapter in enumerate(adapters):
            if adapter in self._heads_H:
                outputs[row] = (self._last_BH[row].float() @ self._heads_H[adapter]).cpu()
        return outputs

    def _keep(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._last_BH = inputs[0][0]
