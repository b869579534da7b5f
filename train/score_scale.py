"""The scale on which a policy is paid by the reward model's scores."""

from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from retroformer.errors import DamagedFile
from train.sound import METRICS, read_metrics

MISSING_END_PENALTY = 1.0
"""Taken from the score of a response that did not end, in standard deviations of the score."""


class ScoreScale(NamedTuple):
    """Mean and standard deviation of the scores that a reward model gave in its training."""

    mean: float = 0.0
    deviation: float = 1.0

    def __call__(self, raw_B: Tensor, ended_B: Tensor) -> Tensor:
        """Scores in standard deviations from the mean, less one for a response without an end, (B,)."""
        return (raw_B - self.mean) / self.deviation - MISSING_END_PENALTY * (~ended_B).float()


UNSCALED = ScoreScale()


def score_scale(reward: Path) -> ScoreScale:
    """That of the reward model in `reward`. Raises MissingInput or DamagedFile where its metrics do not tell it."""
    measured = read_metrics(reward / METRICS)
    # A reward model that scores everything alike would divide by nothing.
    try:
        return ScoreScale(float(measured["train_score_mean"]), max(float(measured["train_score_deviation"]), 1e-3))
    except (KeyError, TypeError, ValueError):
        raise DamagedFile(
            f"{reward / METRICS} does not say on what scale the reward model scores: put the file back from a copy, or "
            f"delete {reward} and run `python -m train reward EXPERIMENT.yaml` again."
        ) from None
