"""Rates of arms and their differences, with intervals over tasks and seeds, and tests.

All arms play the same tasks, so differences are paired.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, combinations
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .results import ArmResult, Flags, Floats

Groups = tuple[Floats, ...]
"""Values by task, (T), or by training seed and task, (S, T), whose means are added; each group has its own seeds."""

_LEVEL = 0.05
"""Level of the exact test below which a difference of two models is claimed."""
_SMALLEST_P = 0.0001
"""Smallest p-value that is printed as a number."""
DRAWS = 10_000
_SEED = 0
_COUNTS_AT_ONCE = 1 << 20
"""Most drawn counts of tasks in memory at once: 8 MiB."""
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5% quantiles of Student's t for 1, 2 ... degrees of freedom; the last, slightly too wide, also covers more."""


class MeanInterval(NamedTuple):
    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(values: Floats | Groups, clusters_T: NDArray[np.str_] | None = None, draws: int = DRAWS) -> MeanInterval:
    """Return the sum of the groups' means, and its percentile interval with seeds and tasks resampled together.

    Each draw takes as many of the seeds of every group as it has, as many of the T tasks, with replacement, and all of
    their combinations (a crossed, or pigeonhole, bootstrap: Owen, 2007). With few seeds that differ much the interval
    is a little too narrow. The interval does not depend on the order of the tasks, so that a report and the viewer,
    which sorts them, give the same one.

    Args:
        values: one value per task, (T), or values by training seed and task, (S, T), in one group or several.
        clusters_T: cluster of each task; all tasks of a drawn cluster are drawn together, so tasks that are alike do
            not count as independent. None: each task is drawn alone.
        draws: number of draws.
    """
    groups = tuple(map(np.atleast_2d, values if isinstance(values, tuple) else (values,)))
    columns = np.vstack([*groups, np.ones(groups[0].shape[1])])
    if clusters_T is not None:
        _, cluster_of_T = np.unique(clusters_T, return_inverse=True)
        columns = np.stack([np.bincount(cluster_of_T, weights=row_T) for row_T in columns])
    # Tasks, or clusters, with the same values are counted instead of drawn one by one.
    columns, counts_P = np.unique(columns, axis=1, return_counts=True)
    sums_SP, sizes_P = columns[:-1], columns[-1]
    generator = np.random.default_rng(_SEED)
    shares = [
        generator.multinomial(len(group), np.full(len(group), 1 / len(group)), size=draws) / len(group)
        for group in groups
    ]
    shares_DS = np.concatenate(shares, axis=1)
    means_D = np.empty(draws)
    draws_at_once = max(1, _COUNTS_AT_ONCE // len(counts_P))
    for start in range(0, draws, draws_at_once):
        shares_of_chunk = shares_DS[start : start + draws_at_once]
        drawn_DP = generator.multinomial(counts_P.sum(), counts_P / counts_P.sum(), size=len(shares_of_chunk))
        sums_D = ((shares_of_chunk @ sums_SP) * drawn_DP).sum(axis=1)
        means_D[start : start + draws_at_once] = sums_D / (drawn_DP @ sizes_P)
    low, high = np.percentile(means_D, (2.5, 97.5))
    return MeanInterval(float(sum(group.mean() for group in groups)), float(low), float(high))


def over_seeds(values_S: Sequence[float]) -> MeanInterval:
    """Return the mean of one number per training seed (at least two), and its Student interval."""
    mean = fmean(values_S)
    margin = _STUDENT[min(len(values_S) - 2, len(_STUDENT) - 1)] * stdev(values_S) / sqrt(len(values_S))
    return MeanInterval(mean, mean - margin, mean + margin)


def mcnemar(first_T: Floats, second_T: Floats) -> float:
    """Return the two-sided exact p-value of McNemar's test, from the tasks that only one of two arms solved."""
    only_first = int(((first_T == 1) & (second_T == 0)).sum())
    only_second = int(((first_T == 0) & (second_T == 1)).sum())
    return min(1.0, 2 * _binomial_tail(only_first + only_second, min(only_first, only_second)))


def sign_flip(difference_T: Floats) -> float:
    """Return the two-sided p-value of Fisher's randomisation test of a paired difference, from `DRAWS` random signs.

    If two arms are equal, each difference might as well have the other sign.
    """
    values_P = difference_T[difference_T != 0]
    extreme, at_once = 0, max(1, _COUNTS_AT_ONCE // max(1, len(values_P)))
    generator = np.random.default_rng(_SEED)
    for start in range(0, DRAWS, at_once):
        signs_DP = generator.integers(2, size=(min(at_once, DRAWS - start), len(values_P))) * 2 - 1
        # Sums of the same values in another order may differ in the last digit.
        extreme += int((np.abs(signs_DP @ values_P) >= abs(values_P.sum()) - 1e-9).sum())
    return (1 + extreme) / (1 + DRAWS)


def _binomial_tail(tosses: int, most: int) -> float:
    """Return the probability of at most `most` heads in `tosses` tosses of a fair coin."""
    # Each number of ways follows from the one before: computing every binomial coefficient anew would take minutes.
    ways = accumulate(range(1, most + 1), lambda before, heads: before * (tosses - heads + 1) // heads, initial=1)
    return sum(ways) / (1 << tosses)


def plain_p(p_value: float) -> str:
    return f"{p_value:.4f}" if p_value >= _SMALLEST_P else f"< {_SMALLEST_P}"


@dataclass(frozen=True)
class Rates:
    """Results over the tasks that every arm finished, and over all tasks with unfinished ones counted as failures."""

    all_tasks: Sequence[ArmResult]

    @cached_property
    def finished(self) -> Sequence[ArmResult]:
        finished_T = np.logical_and.reduce([arm.finished_T for arm in self.all_tasks])
        return [arm.on(finished_T) for arm in self.all_tasks]

    @property
    def finished_tasks(self) -> int:
        return int(self.finished[0].solved_NT.shape[1])

    @property
    def tasks(self) -> int:
        return int(self.all_tasks[0].solved_NT.shape[1])

    @property
    def unfinished(self) -> int:
        return self.tasks - self.finished_tasks

    @property
    def views(self) -> list[Sequence[ArmResult]]:
        """Results over each choice of tasks; a single choice if both are the same."""
        finished = [self.finished] if self.finished_tasks else []
        return finished if not self.unfinished else [*finished, self.all_tasks]


class Comparison(NamedTuple):
    """Difference of two arms after the last trial, paired by task."""

    difference: MeanInterval
    """With training seeds, over seeds and tasks together."""
    p_value: float | None
    """Two-sided exact p-value of McNemar's test; None if an arm pools training seeds, whose means it does not test."""

    @property
    def claimed(self) -> bool:
        """True if the interval excludes 0 and the exact test, where there is one, agrees.

        Of two models that differ at four tasks or five, the interval may exclude 0 by chance.
        """
        return self.difference.excludes_zero and (self.p_value is None or self.p_value < _LEVEL)


def first_failures(results: Sequence[ArmResult]) -> Flags:
    """Return True for each task that was not solved at the trial 0 that arms share."""
    failed_T: Flags = shared_first_arm(results).solved_NT[0] == 0
    return failed_T


def shared_first_arm(results: Sequence[ArmResult]) -> ArmResult:
    """Return the first arm that shares its trial 0; the first arm if each has its own."""
    return next((arm for arm in results if arm.shares_first), results[0])


def comparison(first: ArmResult, second: ArmResult) -> Comparison:
    solved = first.solved_by(-1), second.solved_by(-1)
    return Comparison(bootstrap(difference(*solved)), None if first.pooled or second.pooled else mcnemar(*solved))


def arm_pairs(results: Sequence[ArmResult]) -> list[tuple[ArmResult, ArmResult]]:
    """Return each pair of arms once, the later in the config first: a gain of trained over frozen is positive."""
    return [(second, first) for first, second in combinations(results, 2)]


def difference(first: Floats, second: Floats) -> Groups:
    """Return the difference of two arms by task, (T); if an arm has training seeds, by seed and task, (S, T).

    Two arms with as many seeds are paired seed by seed, as trained one after the other. The seeds of arms with other
    numbers of them are resampled separately: two groups, the second with its sign changed.
    """
    if first.ndim == second.ndim == 2 and len(first) != len(second):
        return first, -second
    return (first - second,)


def mean_over_seeds(groups: Groups) -> Floats:
    """Return the mean of a difference over its training seeds, by task, (T), for an interval over tasks alone."""
    mean_T: Floats = np.sum([np.atleast_2d(values).mean(axis=0) for values in groups], axis=0)
    return mean_T
