"""Sampling of the next token from the model's logits, and completions that must be one of given texts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

GREEDY_BELOW = 1e-5
CANDIDATES = 1024
"""Likeliest tokens among which `top_p` is looked for first: to sort a vocabulary of 150,000 takes 20 times as long."""


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


class Step(NamedTuple):
    """How the next token of a row is chosen."""

    sampling: SamplingParameters
    generator: torch.Generator
    """Source of its random numbers, on the CPU: a seed repeats its sample on any device."""
    written: Sequence[int] = ()
    """Tokens of the completion so far."""
    allowed: Sequence[int] | None = None
    """The only tokens that may come next, ascending; None allows any."""
    log_prob: bool = False
    """If true, the model's own log-probability of the token is computed, too."""


def choose(logits_BV: torch.Tensor, steps: Mapping[int, Step]) -> dict[int, tuple[int, float]]:
    """Return the next token of these rows, the likeliest one at temperature 0, and its log-probability, else 0.

    Only these numbers leave the logits' device. A GPU computes all rows at once; a CPU is faster row by row, in its
    cache. The draw is inverse transform sampling with one uniform number, in the order of the vocabulary: logits that
    differ only by rounding, as they do in a batch with other rows, nearly always give the same token.
    """
    if logits_BV.is_cuda:
        return dict(zip(steps, _choose(logits_BV[list(steps)], list(steps.values())), strict=True)) if steps else {}
    return {row: _choose(logits_BV[row : row + 1], [step])[0] for row, step in steps.items()}


def _choose(logits_BV: torch.Tensor, steps: Sequence[Step]) -> list[tuple[int, float]]:
    restricted_BV = _restricted(logits_BV, steps)
    tokens_B = restricted_BV.argmax(dim=1)
    drawn = [row for row, step in enumerate(steps) if not step.sampling.greedy]
    if drawn:
        logits_DV = restricted_BV if len(drawn) == len(steps) else restricted_BV[drawn]
        cumulative_DV = probabilities(logits_DV, [steps[row].sampling for row in drawn]).cumsum(dim=1)
        uniform_D1 = torch.stack([torch.rand(1, generator=steps[row].generator, dtype=torch.float64) for row in drawn])
        positions_D1 = uniform_D1.to(logits_BV.device) * cumulative_DV[:, -1:]
        tokens_D = torch.searchsorted(cumulative_DV, positions_D1, right=True)[:, 0]
        tokens_B[drawn] = tokens_D.clamp(max=logits_BV.shape[1] - 1)
    log_probs_B = torch.zeros(len(steps))
    if any(step.log_prob for step in steps):
        log_probs_B = logits_BV.gather(1, tokens_B[:, None])[:, 0] - logits_BV.logsumexp(dim=1)
    return list(zip(tokens_B.tolist(), log_probs_B.tolist(), strict=True))


def _restricted(logits_BV: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
    """Return the logits less the penalties of written tokens, and -inf at tokens that are not allowed."""
    changed_BV = logits_BV
    for row, (sampling, _, written, allowed, _) in enumerate(steps):
        penalized = written and (sampling.frequency_penalty or sampling.presence_penalty)
        if changed_BV is logits_BV and (penalized or allowed is not None):
            changed_BV = logits_BV.clone()
        if penalized:
            tokens, counts = torch.unique(torch.tensor(written, device=logits_BV.device), return_counts=True)
            changed_BV[row, tokens] -= sampling.frequency_penalty * counts + sampling.presence_penalty
        if allowed is not None:
            kept = changed_BV[row, list(allowed)]
            changed_BV[row] = -torch.inf
            changed_BV[row, list(allowed)] = kept
    return changed_BV


def probabilities(logits_BV: torch.Tensor, sampling: Sequence[SamplingParameters]) -> torch.Tensor:
    """Return each token's probability at its row's temperature, (B, V) float64.

    It is 0 outside `top_k` and the smallest set with mass `top_p`. They sum to the mass of the kept tokens, not to 1.
    """
    vocabulary = logits_BV.shape[1]

    def column(values: Iterable[float]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.float64, device=logits_BV.device)[:, None]

    logits_BV = logits_BV.double() / column(settings.temperature for settings in sampling)
    limited = [row for row, settings in enumerate(sampling) if 0 < settings.top_k < vocabulary]
    if limited:
        last_L1 = column(sampling[row].top_k - 1 for row in limited).long()
        highest_LK = logits_BV[limited].topk(max(sampling[row].top_k for row in limited)).values
        too_low_LV = logits_BV[limited] < highest_LK.gather(1, last_L1)
        logits_BV[limited] = logits_BV[limited].masked_fill(too_low_LV, -torch.inf)
    probabilities_BV = logits_BV.softmax(dim=1)
    nucleus = [row for row, settings in enumerate(sampling) if settings.top_p < 1]
    if nucleus:
        mass_N1 = column(sampling[row].top_p for row in nucleus)
        probabilities_BV[nucleus] = _nucleus(probabilities_BV[nucleus], mass_N1)
    return probabilities_BV


def _nucleus(probabilities_NV: torch.Tensor, mass_N1: torch.Tensor) -> torch.Tensor:
    """Set the probabilities outside the smallest set with this mass to 0."""
    vocabulary = probabilities_NV.shape[1]
    sorted_NK, order_NK = probabilities_NV.topk(min(CANDIDATES, vocabulary))
    if not (sorted_NK.sum(dim=1, keepdim=True) >= mass_N1).all():
        sorted_NK, order_NK = probabilities_NV.sort(dim=1, descending=True)
    surplus_NK = sorted_NK.cumsum(dim=1) - sorted_NK >= mass_N1
    surplus_NK[:, 0] = False  # The likeliest token stays even at top_p = 0.
    return torch.zeros_like(probabilities_NV).scatter_(1, order_NK, sorted_NK.masked_fill(surplus_NK, 0.0))


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
