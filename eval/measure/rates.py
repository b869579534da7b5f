"""Tasks solved by each arm and trial, and paired differences between arms.

Every rate is over either the tasks that every arm finished, or all tasks with unfinished ones counted as failures.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import NamedTuple

import numpy as np

from .results import ArmResult, SeedResult, with_unfinished
from .statistics import Floats, Intervals, MeanInterval, mcnemar

_LEVEL = 0.05
"""Level of the tests below which a difference is claimed."""


@dataclass(frozen=True)
class Rates:
    """Results over the tasks that every arm finished, and over all tasks with unfinished ones counted as failures."""

    finished: Sequence[ArmResult]
    all_tasks: Sequence[ArmResult]
    intervals: Intervals

    @property
    def finished_tasks(self) -> int:
        return int(self.finished[0].solved_NT.shape[1])

    @property
    def tasks(self) -> int:
        return int(self.all_tasks[0].solved_NT.shape[1])

    @property
    def unfinished(self) -> int:
        """Number of tasks that some arm left unfinished."""
        return self.tasks - self.finished_tasks

    @property
    def views(self) -> list[Sequence[ArmResult]]:
        """Results over each choice of tasks; a single choice if both are the same."""
        finished = [self.finished] if self.finished_tasks else []
        return finished if not self.unfinished else [*finished, self.all_tasks]


class Comparison(NamedTuple):
    """Difference of two arms after the last trial, paired by task, with its exact test."""

    difference: MeanInterval
    """With training seeds, over seeds and tasks together."""
    p_value: float
    """Two-sided exact p-value of McNemar's test; with training seeds, the largest of their pairs."""
    pairs: int
    """Number of pairs of training seeds; 1 if neither arm pools several."""

    @property
    def claimed(self) -> bool:
        """True if the interval excludes 0 and the test agrees."""
        return self.difference.excludes_zero and self.p_value < _LEVEL


def rates_of(results: Sequence[ArmResult], seed: int) -> Rates:
    """Return the rates, with all bootstrap intervals of the report computed."""
    rates = Rates(results, with_unfinished(results), Intervals(seed))
    rates.intervals.prepare(chain.from_iterable(_resampled(arms) for arms in rates.views))
    return rates


def failed_at_first(results: Sequence[ArmResult]) -> int:
    """Return the number of tasks not solved at trial 0."""
    return int((results[0].solved_NT[0] == 0).sum())


def difference_after_last(first: ArmResult, second: ArmResult, intervals: Intervals) -> MeanInterval:
    """Return the difference in the share of tasks solved by the last trial, paired by task."""
    return intervals.of(paired_difference(first, second))


def comparison(first: ArmResult, second: ArmResult, intervals: Intervals) -> Comparison:
    """Compare two arms after the last trial."""
    difference = difference_after_last(first, second, intervals)
    p_values = [
        _p_value(one.solved_NT[-1], other.solved_NT[-1], difference.mean)
        for one, other in product(first.seeds, second.seeds)
    ]
    return Comparison(difference, max(p_values), len(p_values))


def _p_value(first_T: Floats, second_T: Floats, difference: float) -> float:
    """Return the p-value of two training seeds; 1 if they differ in the other direction than their arms."""
    opposed = (first_T.mean() - second_T.mean()) * difference < 0
    return 1.0 if opposed else mcnemar(first_T, second_T)


def _resampled(results: Sequence[ArmResult]) -> Iterator[Floats]:
    """Yield all vectors for which these tables give an interval."""
    failed_T = results[0].solved_NT[0] == 0
    for result in with_seeds(results):
        solved = [result.solved_by(trial) for trial in range(len(result.solved_NT))]
        yield from solved
        yield from (of_trial[..., failed_T] for of_trial in solved[1:])
    for first, second in arm_pairs(results):
        for difference in (paired_difference(first, second), with_these_seeds(paired_difference(first, second))):
            yield difference
            yield difference[..., failed_T]


def with_seeds(results: Sequence[ArmResult]) -> Iterable[ArmResult | SeedResult]:
    for arm in results:
        yield arm
        yield from arm.seeds if arm.pooled else ()


def arm_pairs(results: Sequence[ArmResult]) -> list[tuple[ArmResult, ArmResult]]:
    """Return each pair of arms once, the later in the config first: a gain of trained over frozen is positive."""
    return [(second, first) for first, second in combinations(results, 2)]


def paired_difference(first: ArmResult, second: ArmResult, trial: int = -1) -> Floats:
    """Return the difference after a trial by task, (T); if an arm has training seeds, by seed and task, (S, T).

    Two arms with as many seeds are paired seed by seed, as trained one after the other; other numbers of seeds give all
    combinations.
    """
    one, other = (np.atleast_2d(arm.solved_by(trial)) for arm in (first, second))
    if len(one) != len(other) and 1 not in (len(one), len(other)):
        one, other = np.repeat(one, len(other), axis=0), np.tile(other, (len(one), 1))
    difference_ST: Floats = one - other
    return difference_ST if len(difference_ST) > 1 else difference_ST[0]


def with_these_seeds(difference: Floats) -> Floats:
    """Return the mean of a difference over its training seeds, by task, (T), for an interval over tasks alone."""
    mean_T: Floats = np.atleast_2d(difference).mean(axis=0)
    return mean_T
