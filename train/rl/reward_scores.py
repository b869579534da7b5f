"""Scales the reward model's scores to the rewards of PPO and GRPO."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from retroformer.errors import DamagedFile
from retroformer.experiment.sections.train import Grpo
from retroformer.stage_metrics import METRICS, how_to_replace, read_metrics

from .. import processes
from ..integrity.finite import require_finite_scores
from .sampling import Responses, blocks
from .shared_base import SharedBase

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


def score_scale(reward: Path) -> ScoreScale:
    """Read the scale of the reward model in `reward`. Raises MissingInput or DamagedFile if its metrics lack it."""
    metrics = read_metrics(reward)
    enough = (metrics.measure("held_out_pairs") or 0) >= LEAST_HELD_OUT_PAIRS
    texts = "held_out" if enough and metrics.measure("held_out_score_mean") is not None else "train"
    mean, deviation = (metrics.measure(f"{texts}_score_{name}") for name in ("mean", "deviation"))
    if mean is None or deviation is None:
        raise DamagedFile(
            f"{reward / METRICS} lacks the mean and deviation of the reward model's scores: {how_to_replace(reward)}"
        )
    # The minimum avoids division by 0 for a reward model that gives all texts the same score.
    return ScoreScale(mean, max(deviation, 1e-3))


class ModelScores:
    """Rewards responses by the reward model, in standard deviations of its scores in training."""

    def __init__(self, model: SharedBase, reward: Path, settings: Grpo) -> None:
        self._model, self._settings = model, settings
        self._scale = score_scale(reward)

    @torch.no_grad()
    def __call__(self, update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """Return the score of each response, (B,), minus one for a response without an end.

        Equal responses to one prompt get exactly the same score. Otherwise rounding, which depends on the place in
        a row, would make scores of a group differ, and scaling would turn that into advantages of 1.

        Raises:
            NotFinite: a score is infinite or not a number, which would look like a missing reward.
        """
        micro_batches = blocks(responses, self._settings.micro_batch_tokens)
        parts = processes.each(micro_batches, lambda block: self._model.scores(block.packed))
        raw_B = torch.cat(parts)
        require_finite_scores(raw_B)
        rows = [(number, tuple(tokens)) for number, tokens in zip(asked, responses.tokens, strict=True)]
        first: dict[tuple[int, tuple[int, ...]], int] = {}
        equal_B = raw_B[[first.setdefault(row, place) for place, row in enumerate(rows)]]
        return self._scale(equal_B, responses.ended_B)
