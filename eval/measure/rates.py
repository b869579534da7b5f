"""Tasks solved by each arm and trial, and paired differences between arms.

Every rate is over either the tasks that every arm finished, or all tasks with unfinished ones counted as failures.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .results import ArmResult, SeedResult, with_unfinished
from .statistics import Floats, Groups, Intervals, MeanInterval, mcnemar

_LEVEL = 0.05
"""Level of the exact test below which a difference of two models is claimed."""


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


def rates_of(results: Sequence[ArmResult], seed: int) -> Rates:
    """Return the rates, with all bootstrap intervals of the report computed."""
    rates = Rates(results, with_unfinished(results), Intervals(seed))
    rates.intervals.prepare(chain.from_iterable(_resampled(arms) for arms in rates.views))
    return rates


def failed_at_first(results: Sequence[ArmResult]) -> NDArray[np.bool_]:
    """Return True for each task that was not solved at the trial 0 that arms share."""
    failed_T: NDArray[np.bool_] = sharing(results).solved_NT[0] == 0
    return failed_T


def sharing(results: Sequence[ArmResult]) -> ArmResult:
    """Return the first arm that shares its trial 0; the first arm if each has its own."""
    return next((arm for arm in results if arm.shares_first), results[0])


def difference_after_last(first: ArmResult, second: ArmResult, intervals: Intervals) -> MeanInterval:
    """Return the difference in the share of tasks solved by the last trial, paired by task."""
    return intervals.of(paired_difference(first, second))


def comparison(first: ArmResult, second: ArmResult, intervals: Intervals) -> Comparison:
    """Compare two arms after the last trial."""
    pooled = first.pooled or second.pooled
    p_value = None if pooled else mcnemar(first.solved_NT[-1], second.solved_NT[-1])
    return Comparison(difference_after_last(first, second, intervals), p_value)


def _resampled(results: Sequence[ArmResult]) -> Iterator[Floats | Groups]:
    """Yield all vectors for which these tables give an interval."""
    failed_T = failed_at_first(results)
    for result in with_seeds(results):
        solved = [result.solved_by(trial) for trial in range(len(result.solved_NT))]
        yield from solved
        yield from (of_trial[..., failed_T] for of_trial in solved[1:])
    for first, second in arm_pairs(results):
        difference = paired_difference(first, second)
        for included in (difference, among(difference, failed_T)):
            yield included
            yield with_these_seeds(included)


def with_seeds(results: Sequence[ArmResult]) -> Iterable[ArmResult | SeedResult]:
    for arm in results:
        yield arm
        yield from arm.seeds if arm.pooled else ()


def arm_pairs(results: Sequence[ArmResult]) -> list[tuple[ArmResult, ArmResult]]:
    """Return each pair of arms once, the later in the config first: a gain of trained over frozen is positive."""
    return [(second, first) for first, second in combinations(results, 2)]


def paired_difference(first: ArmResult, second: ArmResult, trial: int = -1) -> Groups:
    """Return the difference after a trial by task, (T); if an arm has training seeds, by seed and task, (S, T).

    Two arms with as many seeds are paired seed by seed, as trained one after the other. The seeds of arms with other
    numbers of them are resampled separately: two groups, the second with its sign changed.
    """
    one, other = first.solved_by(trial), second.solved_by(trial)
    if first.pooled and second.pooled and len(one) != len(other):
        return one, -other
    return (one - other,)


def among(difference: Groups, included_T: NDArray[np.bool_]) -> Groups:
    """Return a difference over some of the tasks."""
    return tuple(values[..., included_T] for values in difference)


def with_these_seeds(difference: Groups) -> Floats:
    """Return the mean of a difference over its training seeds, by task, (T), for an interval over tasks alone."""
    mean_T: Floats = np.sum([np.atleast_2d(values).mean(axis=0) for values in difference], axis=0)
    return mean_T
