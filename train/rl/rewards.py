"""Rewards of PPO and GRPO: the scores of a reward model, or stored ratings."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from retroformer.errors import DamagedFile
from retroformer.run.stage_metrics import METRICS, replacement_hint

from .. import processes
from ..adapter import Adapter
from ..data.samples import RatedGroup, RatedResponse
from ..integrity import require_finite_scores
from ..losses import masked_mean
from .policy import SharedBase
from .sampling import NO_TOKEN, Responses, SamplingSettings, blocks, ended_responses, padded, policy_log_probs

MAX_WEIGHT = 2.0
"""Largest importance weight of a token."""
_ROUNDING = 1e-3
"""Log-probabilities closer than this, in nats, count as equal: they differ by rounding with the server's other work,
and a resumed run should repeat an unbroken one."""


def truncated_weights(policy_BT: Tensor, sampler_BT: Tensor) -> Tensor:
    """Return the importance weight of each token, (B, T), from the log-probabilities of policy and sampler."""
    differences_BT = policy_BT - sampler_BT
    return torch.exp(differences_BT.where(differences_BT.abs() > _ROUNDING, 0.0)).clamp(max=MAX_WEIGHT)


MISSING_END_PENALTY = 1.0
"""Subtracted from the score of a response that did not end, in standard deviations of the score."""


LEAST_HELD_OUT_PAIRS = 8
"""Held-out pairs that the scale needs; with fewer, it is that of training pairs."""


class ScoreScale(NamedTuple):
    """Mean and standard deviation of a reward model's scores.

    They are those of held-out texts, since a reward model that knows its training texts by heart spreads them further
    apart than any others.
    """

    mean: float = 0.0
    deviation: float = 1.0

    def __call__(self, raw_B: Tensor, ended_B: Tensor) -> Tensor:
        """Return scores in standard deviations from the mean, minus one for a response without an end, (B,)."""
        return (raw_B - self.mean) / self.deviation - MISSING_END_PENALTY * (~ended_B).float()


UNSCALED = ScoreScale()


def score_scale(reward: Adapter) -> ScoreScale:
    """Return the scale of a reward model. Raises DamagedFile if its metrics lack it."""
    metrics, folder = reward.metrics, reward.folder
    enough = (metrics.measure("held_out_pairs") or 0) >= LEAST_HELD_OUT_PAIRS
    texts = "held_out" if enough and metrics.measure("held_out_score_mean") is not None else "train"
    mean, deviation = (metrics.measure(f"{texts}_score_{name}") for name in ("mean", "deviation"))
    if mean is None or deviation is None:
        raise DamagedFile(
            f"{folder / METRICS} lacks the mean and deviation of the reward model's scores: {replacement_hint(folder)}"
        )
    # The minimum avoids division by 0 for a reward model that gives all texts the same score.
    return ScoreScale(mean, max(deviation, 1e-3))


class ModelScores:
    """Rewards responses by the reward model, on the scale of its scores."""

    def __init__(self, model: SharedBase, scale: ScoreScale, micro_batch_tokens: int) -> None:
        self._model, self._scale, self._micro_batch_tokens = model, scale, micro_batch_tokens

    @torch.no_grad()
    def __call__(self, update: int, indices: Sequence[int], responses: Responses) -> Tensor:
        """Return the score of each response, (B,), minus one for a response without an end.

        Equal responses to one prompt get exactly the same score. Otherwise rounding, which depends on the place in
        a row, would make scores of a group differ, and scaling would turn that into advantages of 1.

        Raises:
            NotFinite: a score is infinite or not a number, which would look like a missing reward.
        """
        micro_batches = blocks(responses, self._micro_batch_tokens)
        parts = processes.each(micro_batches, lambda block: self._model.scores(block.packed))
        raw_B = torch.cat(parts)
        require_finite_scores(raw_B)
        rows = [(number, tuple(tokens)) for number, tokens in zip(indices, responses.tokens, strict=True)]
        first: dict[tuple[int, tuple[int, ...]], int] = {}
        equal_B = raw_B[[first.setdefault(row, place) for place, row in enumerate(rows)]]
        return self._scale(equal_B, responses.ended_B)


class StoredGroups:
    """Gives stored reflections as responses (`Respond`), and their ratings as rewards (`Rewards`)."""

    def __init__(self, groups: Sequence[RatedGroup], prompts: Sequence[list[int]], size: int) -> None:
        """Hold groups with their prompts in tokens, for groups of `size`."""
        self._size = size
        self._groups = {tuple(ids): group.responses for ids, group in zip(prompts, groups, strict=True)}
        self._given = list[RatedResponse]()
        """The reflections that were given last."""

    def _chosen(self, responses: Sequence[RatedResponse]) -> list[RatedResponse]:
        """Return `size` reflections of a group, whose ratings differ.

        Of a larger group they are drawn anew each time; a smaller one repeats its first reflection, without a rating.
        """
        if (missing := self._size - len(responses)) >= 0:
            return [*responses, *[responses[0]._replace(rating=float("nan"))] * missing]
        first, *rest = (responses[number] for number in torch.randperm(len(responses)).tolist())
        second = next(number for number, response in enumerate(rest) if response.rating != first.rating)
        return [first, rest.pop(second), *rest][: self._size]

    def respond(self, model: SharedBase, prompts: Sequence[list[int]], draw: SamplingSettings) -> Responses:
        """Return reflections on these prompts, each of which is there `size` times in succession."""
        stored = [response for ids in prompts[:: self._size] for response in self._chosen(self._groups[tuple(ids)])]
        self._given = stored
        response_BT = padded([[token.id for token in response.drawn] for response in stored], NO_TOKEN, model.device)
        sampler_BT = padded([[token.log_prob for token in response.drawn] for response in stored], 0.0, model.device)
        responses = ended_responses(prompts, response_BT, draw)
        mask_BT = responses.mask_BT
        weights_BT = truncated_weights(
            policy_log_probs(model, responses, draw.micro_batch_tokens), sampler_BT * mask_BT
        )
        facts = {
            "importance": float(masked_mean(weights_BT, mask_BT)),
            "truncated": float(masked_mean((weights_BT == MAX_WEIGHT).float(), mask_BT)),
        }
        return responses._replace(facts=facts, importance_BT=weights_BT)

    def __call__(self, update: int, indices: Sequence[int], responses: Responses) -> Tensor:
        """Return the ratings of the reflections that were given last, (B,), `nan` for repeated ones."""
        return torch.tensor([response.rating for response in self._given], device=responses.response_BT.device)
