"""The numbers of the report as tables: what each arm solved by which trial, and what two arms differ in.

Each table is made for one choice of tasks: those that every arm finished, or all of them with unfinished ones counted
as failures. `twice` gives both where they are not the same.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from eval.outcome import ArmOutcome, SeedOutcome, with_unfinished
from eval.statistics import Floats, Interval, Intervals, mcnemar
from eval.table import table

_SMALLEST_P = 0.0001
"""A smaller p-value is said to be smaller."""


@dataclass(frozen=True)
class Rates:
    """The arms over the tasks that every arm finished, and over all tasks, unfinished ones counted as failures."""

    finished: Sequence[ArmOutcome]
    all_tasks: Sequence[ArmOutcome]
    intervals: Intervals

    @property
    def finished_tasks(self) -> int:
        return int(self.finished[0].solved_NT.shape[1])

    @property
    def tasks(self) -> int:
        return int(self.all_tasks[0].solved_NT.shape[1])

    @property
    def unfinished(self) -> int:
        """Tasks that some arm left unfinished."""
        return self.tasks - self.finished_tasks

    @property
    def shown(self) -> list[Sequence[ArmOutcome]]:
        """What the numbers are given for: one choice of tasks where both are the same."""
        views = [self.finished] if self.finished_tasks else []
        return views if not self.unfinished else [*views, self.all_tasks]


def rates_of(outcomes: Sequence[ArmOutcome], seed: int) -> Rates:
    """Resample all that the report gives an interval of."""
    rates = Rates(outcomes, with_unfinished(outcomes), Intervals(seed))
    rates.intervals.prepare(chain.from_iterable(_resampled(arms) for arms in rates.shown))
    return rates


def twice(rates: Rates, render: Callable[[Sequence[ArmOutcome]], str]) -> str:
    """One table where every arm finished every task, else one for each choice of tasks, and which it is."""
    if not rates.unfinished:
        return render(rates.finished)
    finished = (
        f"Over the {rates.finished_tasks} tasks that every arm finished:\n\n{render(rates.finished)}"
        if rates.finished_tasks
        else "No task was finished by every arm."
    )
    return (
        f"{finished}\n\nOver all {rates.tasks} tasks, unfinished ones counted as failures:\n\n{render(rates.all_tasks)}"
    )


def solved_by_trial(outcomes: Sequence[ArmOutcome], intervals: Intervals) -> str:
    """Every arm; below an arm that pools training seeds each of them."""
    trials = [f"by trial {index}" for index in range(len(outcomes[0].solved_NT))]
    header = ["arm", *trials, "last return", "unfinished", "invalid attempts", "tokens in", "tokens out", "dollars"]
    return table(header, _rows(outcomes, intervals))


def paired_differences(outcomes: Sequence[ArmOutcome], intervals: Intervals) -> str:
    """Of all tasks after the last trial, with the exact test where both arms have one training seed."""
    header = ["first arm", "second arm", "first - second", "only first solved", "only second solved", "McNemar p"]
    rows = [
        [first.name, second.name, _shown(difference_after_last(first, second, intervals)), *_tested(first, second)]
        for first, second in _pairs(outcomes)
    ]
    return table(header, rows)


def failed_at_first(outcomes: Sequence[ArmOutcome]) -> int:
    """How many tasks trial 0 left to be solved."""
    return int((outcomes[0].solved_NT[0] == 0).sum())


def solved_of_failed(outcomes: Sequence[ArmOutcome], intervals: Intervals) -> str:
    """Of the tasks that failed at trial 0: solved by each later trial, and what two arms differ in."""
    if not failed_at_first(outcomes):
        return "None failed at trial 0."
    failed_T = outcomes[0].solved_NT[0] == 0
    trials = len(outcomes[0].solved_NT)
    rows = [
        [one.name, *(_count(solved_T[failed_T], intervals) for solved_T in one.solved_NT[1:])]
        for one in _with_seeds(outcomes)
    ]
    differences = [
        [first.name, second.name, _shown(intervals.of(_difference(first, second)[failed_T]))]
        for first, second in _pairs(outcomes)
    ]
    solved = table(["arm", *(f"by trial {index}" for index in range(1, trials))], rows)
    return f"{solved}\n\n{table(['first arm', 'second arm', 'first - second'], differences)}" if differences else solved


def difference_after_last(first: ArmOutcome, second: ArmOutcome, intervals: Intervals) -> Interval:
    """Of the shares of all tasks solved by the last trial, paired by task."""
    return intervals.of(_difference(first, second))


def _resampled(outcomes: Sequence[ArmOutcome]) -> Iterator[Floats]:
    """All vectors that these tables give an interval of."""
    failed_T = outcomes[0].solved_NT[0] == 0
    for one in _with_seeds(outcomes):
        yield from one.solved_NT
        yield from (solved_T[failed_T] for solved_T in one.solved_NT[1:])
    for first, second in _pairs(outcomes):
        yield _difference(first, second)
        yield _difference(first, second)[failed_T]


def _rows(outcomes: Sequence[ArmOutcome], intervals: Intervals) -> Iterable[list[str]]:
    for arm in outcomes:
        yield _row(arm, intervals, unfinished=str(arm.incomplete))
        for seed in arm.seeds if arm.pooled else ():
            yield _row(seed, intervals, unfinished="")


def _row(one: ArmOutcome | SeedOutcome, intervals: Intervals, unfinished: str) -> list[str]:
    return [
        one.name,
        *(str(intervals.of(solved_T)) for solved_T in one.solved_NT),
        f"{one.return_NT[-1].mean():.3f}",
        unfinished,
        str(one.invalid),
        f"{one.usage.prompt_tokens:,}",
        f"{one.usage.completion_tokens:,}",
        f"{one.usage.dollars:.2f}",
    ]


def _with_seeds(outcomes: Sequence[ArmOutcome]) -> Iterable[ArmOutcome | SeedOutcome]:
    for arm in outcomes:
        yield arm
        yield from arm.seeds if arm.pooled else ()


def _pairs(outcomes: Sequence[ArmOutcome]) -> list[tuple[ArmOutcome, ArmOutcome]]:
    """Every two arms once, the later of the page first, so that a gain of the trained over the frozen is positive."""
    return [(second, first) for first, second in combinations(outcomes, 2)]


def _difference(first: ArmOutcome, second: ArmOutcome) -> Floats:
    difference_T: Floats = first.solved_NT[-1] - second.solved_NT[-1]
    return difference_T


def _shown(interval: Interval) -> str:
    return f"{interval}" + ("" if interval.excludes_zero else " (covers 0)")


def _tested(first: ArmOutcome, second: ArmOutcome) -> list[str]:
    """Tasks that one of the two arms solved alone; a mean over seeds solves no task, so there is nothing to count."""
    if first.pooled or second.pooled:
        return ["-", "-", "-"]
    first_T, second_T = first.solved_NT[-1], second.solved_NT[-1]
    p_value = mcnemar(first_T, second_T)
    return [
        str(int(((first_T == 1) & (second_T == 0)).sum())),
        str(int(((first_T == 0) & (second_T == 1)).sum())),
        f"{p_value:.4f}" if p_value >= _SMALLEST_P else f"< {_SMALLEST_P}",
    ]


def _count(solved_T: Floats, intervals: Intervals) -> str:
    """`37: 0.617 [0.500, 0.733]`; the count is a mean, too, where seeds are pooled."""
    count = float(solved_T.sum())
    shown = f"{count:.0f}" if count == round(count) else f"{count:.1f}"
    return f"{shown}: {intervals.of(solved_T)}"
