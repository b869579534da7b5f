"""Rates of arms and their differences, with intervals over tasks and seeds, and tests.

All arms play the same tasks, so differences are paired.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, combinations
from math import comb, exp, fsum, lgamma, log, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .results import ArmResult, Flags, Floats, arms_and_seeds, count_unfinished

Groups = tuple[Floats, ...]
"""Values by task, (T), or by training seed and task, (S, T), whose means are added; each group has its own seeds."""

_LEVEL = 0.05
"""Level of the exact test below which a difference of two models is claimed."""
_SMALLEST_P = 0.0001
"""Smallest p-value that is printed as a number."""
DRAWS = 10_000
_INDICES_AT_ONCE = 1 << 20
"""Most drawn task indices in memory at once: 8 MiB. With more tasks than this, one draw at a time."""
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""97.5% quantiles of Student's t for 1, 2 ... degrees of freedom; the last, slightly too wide, also covers more."""

_EXACT_TOSSES = 2_000
"""Most discordant tasks for which the tail is computed exactly with integers."""


class MeanInterval(NamedTuple):
    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def bootstrap(vectors: Sequence[Floats], seed: int) -> list[MeanInterval]:
    """Return the mean of each vector (one value per task) and its percentile interval over `DRAWS` resamples of tasks.

    The vectors share one set of draws. Each interval equals that of its vector alone: it does not depend on what else
    is resampled.
    """
    tasks = len(vectors[0])
    countable = [index for index, values_T in enumerate(vectors) if _sums_exactly(values_T)]
    others = [index for index in range(len(vectors)) if index not in countable]
    values_KT = np.array([vectors[index] for index in countable])
    means_KD = np.empty((len(vectors), DRAWS))
    generator = np.random.default_rng(seed)
    # Generator.integers gives the same numbers at once or in chunks.
    draws_at_once = max(1, _INDICES_AT_ONCE // tasks)
    for start in range(0, DRAWS, draws_at_once):
        draws = slice(start, min(start + draws_at_once, DRAWS))
        chosen_DT = generator.integers(tasks, size=(draws.stop - draws.start, tasks))
        for index in others:
            means_KD[index, draws] = vectors[index][chosen_DT].mean(axis=1)
        if countable:
            # Counting how often each task is drawn is faster than adding up, and sums of these values are exact.
            cells_DT = chosen_DT + np.arange(len(chosen_DT))[:, None] * tasks
            counts_DT = np.bincount(cells_DT.ravel(), minlength=cells_DT.size).reshape(cells_DT.shape)
            means_KD[countable, draws] = values_KT @ counts_DT.astype(np.float64).T / tasks
    bounds = np.percentile(means_KD, (2.5, 97.5), axis=1)
    return [
        MeanInterval(float(values_T.mean()), float(low), float(high))
        for values_T, low, high in zip(vectors, *bounds, strict=True)
    ]


def bootstrap_counts(values_K: Floats, counts_K: NDArray[np.intp], seed: int) -> MeanInterval:
    """Return the mean of K values that occur `counts_K` times, and its percentile interval over `DRAWS` resamples.

    Drawing how often each value occurs, from a multinomial distribution, is the same bootstrap as drawing tasks, and
    takes as long for a million tasks as for ten.
    """
    tasks = int(counts_K.sum())
    drawn_DK = np.random.default_rng(seed).multinomial(tasks, counts_K / tasks, size=DRAWS)
    low, high = np.percentile(drawn_DK @ values_K / tasks, (2.5, 97.5))
    return MeanInterval(float(values_K @ counts_K / tasks), float(low), float(high))


def bootstrap_seeds(
    values: Floats | Groups, seed: int, clusters_T: NDArray[np.str_] | None = None, draws: int = DRAWS
) -> MeanInterval:
    """Return the sum of the groups' means, and its percentile interval with seeds and tasks resampled together.

    Each draw takes as many of the seeds of every group as it has, as many of the T tasks, with replacement, and all of
    their combinations (a crossed, or pigeonhole, bootstrap: Owen, 2007). With few seeds that differ much the interval
    is a little too narrow.

    Args:
        values: values by training seed and task, (S, T), in one group or several.
        seed: seed of the draws.
        clusters_T: cluster of each task; all tasks of a drawn cluster are drawn together, so tasks that are alike do
            not count as independent. None: each task is drawn alone.
        draws: number of draws.
    """
    groups = _groups(values)
    columns = np.vstack([*groups, np.ones(groups[0].shape[1])])
    if clusters_T is not None:
        _, cluster_of_T = np.unique(clusters_T, return_inverse=True)
        columns = np.stack([np.bincount(cluster_of_T, weights=row_T) for row_T in columns])
    # Tasks, or clusters, with the same values are counted instead of drawn one by one.
    columns, counts_P = np.unique(columns, axis=1, return_counts=True)
    sums_SP, sizes_P = columns[:-1], columns[-1]
    generator = np.random.default_rng(seed)
    shares = [generator.multinomial(len(of), np.full(len(of), 1 / len(of)), size=draws) / len(of) for of in groups]
    shares_DS = np.concatenate(shares, axis=1)
    means_D = np.empty(draws)
    draws_at_once = max(1, _INDICES_AT_ONCE // len(counts_P))
    for start in range(0, draws, draws_at_once):
        shares_of_chunk = shares_DS[start : start + draws_at_once]
        drawn_DP = generator.multinomial(counts_P.sum(), counts_P / counts_P.sum(), size=len(shares_of_chunk))
        sums_D = ((shares_of_chunk @ sums_SP) * drawn_DP).sum(axis=1)
        means_D[start : start + draws_at_once] = sums_D / (drawn_DP @ sizes_P)
    low, high = np.percentile(means_D, (2.5, 97.5))
    return MeanInterval(float(sum(group.mean() for group in groups)), float(low), float(high))


class Intervals:
    """Cache of bootstrap intervals with one seed: all values are resampled once.

    Values are one per task, (T), or one per training seed and task, (S, T), in one group or several.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._intervals: dict[bytes, MeanInterval] = {}

    def prepare(self, vectors: Iterable[Floats | Groups]) -> None:
        """Resample many vectors together: much faster than separately, with the same intervals."""
        missing: dict[int, dict[bytes, Floats]] = {}
        for groups in map(_groups, vectors):
            key = _digest(groups)
            if not groups[0].size or key in self._intervals:
                continue
            if groups[0].ndim == 2:
                self._intervals[key] = bootstrap_seeds(groups, self.seed)
            else:
                missing.setdefault(len(groups[0]), {})[key] = groups[0]
        for same_length in missing.values():
            intervals = bootstrap(list(same_length.values()), self.seed)
            self._intervals.update(zip(same_length, intervals, strict=True))

    def of(self, values: Floats | Groups) -> MeanInterval:
        """Return the interval of `bootstrap` for one value per task, or of `bootstrap_seeds` for several seeds."""
        self.prepare([values])
        return self._intervals[_digest(_groups(values))]


def _sums_exactly(values_T: Floats) -> bool:
    """True if sums of these values are exact in any order: multiples of 1/64 up to 64, such as 0, 1 and 1/2."""
    scaled_T = values_T * 64
    return bool(np.all(scaled_T == np.rint(scaled_T)) and np.all(np.abs(values_T) <= 64))


def _groups(values: Floats | Groups) -> Groups:
    return values if isinstance(values, tuple) else (values,)


def _digest(groups: Groups) -> bytes:
    digest = blake2b()
    for values in groups:
        digest.update(np.ascontiguousarray(values).tobytes() + str(values.shape).encode())
    return digest.digest()


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


def _binomial_tail(tosses: int, most: int) -> float:
    """Return the probability of at most `most` heads in `tosses` tosses of a fair coin."""
    if tosses <= _EXACT_TOSSES:
        return float(sum(comb(tosses, count) for count in range(most + 1)) / 2**tosses)
    # Exact integers would have as many bits as tosses and take hours to sum; this is correct to nine digits.
    logs = (lgamma(tosses + 1) - lgamma(count + 1) - lgamma(tosses - count + 1) for count in range(most + 1))
    return fsum(exp(term - tosses * log(2)) for term in logs)


def plain_p(p_value: float) -> str:
    return f"{p_value:.4f}" if p_value >= _SMALLEST_P else f"< {_SMALLEST_P}"


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
    rates = Rates(results, count_unfinished(results), Intervals(seed))
    rates.intervals.prepare(chain.from_iterable(_resampled(arms) for arms in rates.views))
    return rates


def first_failures(results: Sequence[ArmResult]) -> Flags:
    """Return True for each task that was not solved at the trial 0 that arms share."""
    failed_T: Flags = shared_first_arm(results).solved_NT[0] == 0
    return failed_T


def shared_first_arm(results: Sequence[ArmResult]) -> ArmResult:
    """Return the first arm that shares its trial 0; the first arm if each has its own."""
    return next((arm for arm in results if arm.shares_first), results[0])


def comparison(first: ArmResult, second: ArmResult, intervals: Intervals) -> Comparison:
    pooled = first.pooled or second.pooled
    p_value = None if pooled else mcnemar(first.solved_NT[-1], second.solved_NT[-1])
    return Comparison(intervals.of(paired_difference(first, second)), p_value)


def _resampled(results: Sequence[ArmResult]) -> Iterator[Floats | Groups]:
    """Yield all vectors for which these tables give an interval."""
    failed_T = first_failures(results)
    for result in arms_and_seeds(results):
        solved = [result.solved_by(trial) for trial in range(len(result.solved_NT))]
        yield from solved
        yield from (of_trial[..., failed_T] for of_trial in solved[1:])
    for first, second in arm_pairs(results):
        difference = paired_difference(first, second)
        for included in (difference, select_tasks(difference, failed_T)):
            yield included
            yield mean_over_seeds(included)


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


def select_tasks(difference: Groups, included_T: Flags) -> Groups:
    return tuple(values[..., included_T] for values in difference)


def mean_over_seeds(difference: Groups) -> Floats:
    """Return the mean of a difference over its training seeds, by task, (T), for an interval over tasks alone."""
    mean_T: Floats = np.sum([np.atleast_2d(values).mean(axis=0) for values in difference], axis=0)
    return mean_T
