"""Intervals over tasks and over seeds, and paired tests: arms saw the same tasks, so differences are task by task."""

from collections.abc import Sequence
from math import comb, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DRAWS = 10_000
_PORTION = 100
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5 % quantiles of Student's t for 1, 2 ... degrees of freedom; the last, a little too wide, serves for more."""


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(values_T: Floats, seed: int) -> Interval:
    """Mean of `values_T` (one per task) and its percentile interval over `DRAWS` resamples of the tasks."""
    generator = np.random.default_rng(seed)
    tasks = len(values_T)
    # In portions: one draw at a time is slow, and all draws at once take gigabytes for a split of thousands of tasks.
    portions = [
        values_T[generator.integers(tasks, size=(_PORTION, tasks))].mean(axis=1) for _ in range(DRAWS // _PORTION)
    ]
    low, high = np.percentile(np.concatenate(portions), (2.5, 97.5))
    return Interval(float(values_T.mean()), float(low), float(high))


def over_seeds(values_S: Sequence[float]) -> Interval:
    """Mean of one number from each of two training seeds or more, and Student's interval of it."""
    mean = fmean(values_S)
    margin = _STUDENT[min(len(values_S) - 2, len(_STUDENT) - 1)] * stdev(values_S) / sqrt(len(values_S))
    return Interval(mean, mean - margin, mean + margin)


def mcnemar(first_T: Floats, second_T: Floats) -> float:
    """Two-sided exact p-value that the tasks only one of two arms solved are as often the first's as the second's."""
    only_first = int(((first_T == 1) & (second_T == 0)).sum())
    only_second = int(((first_T == 0) & (second_T == 1)).sum())
    discordant = only_first + only_second
    tail = sum(comb(discordant, count) for count in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**discordant))
