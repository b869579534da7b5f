"""Sampling of the next token from the model's logits, and completions that must be one of given texts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class SamplingParameters:
    """Sampling parameters of the OpenAI protocol, and FastChat's `top_k`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is taken instead of a random draw."""
        return self.temperature < GREEDY_BELOW


def choose(
    logits_V: torch.Tensor,
    sampling: SamplingParameters,
    written: Sequence[int],
    generator: torch.Generator,
    allowed: Sequence[int] | None = None,
) -> int:
    """Return the next token after the tokens `written` so far; the likeliest token at temperature 0.

    With `allowed` (ascending), the distribution is over these tokens only.

    The draw is inverse transform sampling with one uniform number, in the order of the vocabulary: logits that differ
    only by rounding, as they do in a batch with other rows, give the same token.
    """
    if written and (sampling.frequency_penalty or sampling.presence_penalty):
        tokens, counts = torch.unique(torch.tensor(written), return_counts=True)
        logits_V = logits_V.clone()
        logits_V[tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty
    if allowed is not None:
        return allowed[_draw(logits_V[list(allowed)], sampling, generator)]
    return _draw(logits_V, sampling, generator)


def _draw(logits_V: torch.Tensor, sampling: SamplingParameters, generator: torch.Generator) -> int:
    if sampling.greedy:
        return int(logits_V.argmax())
    cumulative_V = probabilities(logits_V, sampling).cumsum(0)
    uniform = torch.rand(1, generator=generator, dtype=torch.float64)
    token = int(torch.searchsorted(cumulative_V, uniform * cumulative_V[-1], right=True))
    return min(token, len(logits_V) - 1)


def probabilities(logits_V: torch.Tensor, sampling: SamplingParameters) -> torch.Tensor:
    """Return each token's probability at the temperature; 0 outside `top_k` and the smallest set with mass `top_p`.

    They sum to the mass of the kept tokens, not to 1.
    """
    logits_V = logits_V.double() / sampling.temperature
    if 0 < sampling.top_k < len(logits_V):
        threshold = logits_V.topk(sampling.top_k).values[-1]
        logits_V = logits_V.masked_fill(logits_V < threshold, -torch.inf)
    probabilities_V = logits_V.softmax(0)
    if sampling.top_p < 1:
        sorted_V, order_V = probabilities_V.sort(descending=True)
        surplus_V = sorted_V.cumsum(0) - sorted_V >= sampling.top_p
        surplus_V[0] = False  # The likeliest token stays even at top_p = 0.
        probabilities_V[order_V[surplus_V]] = 0.0
    return probabilities_V


_Tree: TypeAlias = "dict[int, _Tree]"


class Choices:
    """Position of a completion in the tree of the token sequences that it may become.

    Each sequence ends with a token that ends the request, so none is a prefix of another.
    """

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self._node: _Tree = {}
        for sequence in sequences:
            branch = self._node
            for token in sequence:
                branch = branch.setdefault(token, {})

    @property
    def allowed(self) -> list[int]:
        """Tokens that may come next, ascending; none after the end of a sequence."""
        return sorted(self._node)

    def write(self, token: int) -> None:
        """Move to `token`, one of the allowed tokens, which has been written."""
        self._node = self._node[token]
