"""What the store says about the arms: who solved which task by which trial, and what is missing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from eval.statistics import Floats
from retroformer.arms import FIRST_TRIAL
from retroformer.records import Outcome, Task, Usage
from retroformer.store import AttemptRow, Store

_Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class SeedOutcome:
    """One training seed of an arm, or an arm that has none."""

    stored: str
    """Its name in the store, such as `eval/trained/ppo-1`."""
    solved_NT: Floats
    """1 where the last attempt made by trial N solved task T, shape (trials, tasks finished in every arm)."""
    return_NT: Floats
    """Return of the last attempt made by trial N, of the same shape."""
    all_solved_NT: Floats
    """As `solved_NT` over all tasks, shape (trials, tasks): from the first missing trial on, 0."""
    all_return_NT: Floats
    """As `return_NT` over all tasks: from the first missing trial on, 0."""
    invalid: int
    """Spoiled attempts, each with its cause in the store."""
    usage: Usage

    @property
    def name(self) -> str:
        """That of its arm, and that of the model where the arm pools several: `trained/ppo-1`."""
        return self.stored.removeprefix("eval/")


@dataclass(frozen=True)
class ArmOutcome:
    """An arm of the page. What it says of a task is the mean over its training seeds."""

    name: str
    seeds: tuple[SeedOutcome, ...]
    incomplete: int
    """Tasks that the infrastructure left unfinished in a seed of this arm."""

    @property
    def pooled(self) -> bool:
        """Whether there are several training seeds."""
        return len(self.seeds) > 1

    @cached_property
    def solved_NT(self) -> Floats:
        """Share of the seeds whose last attempt made by trial N solved task T."""
        return _mean([seed.solved_NT for seed in self.seeds])

    @cached_property
    def return_NT(self) -> Floats:
        """Mean return of the last attempts made by trial N."""
        return _mean([seed.return_NT for seed in self.seeds])

    @property
    def invalid(self) -> int:
        return sum(seed.invalid for seed in self.seeds)

    @property
    def usage(self) -> Usage:
        return sum((seed.usage for seed in self.seeds), start=Usage())


def arm_outcomes(
    store: Store, tasks: Sequence[Task], arms: Mapping[str, Sequence[str]], trials: int, shared: str = FIRST_TRIAL
) -> list[ArmOutcome]:
    """All arms on the tasks that every arm finished, so that they can be compared task by task.

    `arms` gives for each name on the page the names in the store, one for each training seed; `shared` is the name of
    their trial 0.
    """
    first = _Attempts.none(trials, tasks)
    first.add(store.attempt_rows(shared))
    attempts = {stored: first.copy() for names in arms.values() for stored in names}
    for stored, made in attempts.items():
        made.add(store.attempt_rows(stored))
    complete = {stored: made.complete_T for stored, made in attempts.items()}
    common_T = np.logical_and.reduce([np.ones(len(tasks), dtype=bool), *complete.values()])
    return [
        ArmOutcome(
            name=arm,
            seeds=tuple(_seed_outcome(store, stored, attempts[stored], common_T) for stored in names),
            incomplete=len(tasks) - int(np.logical_and.reduce([complete[stored] for stored in names]).sum()),
        )
        for arm, names in arms.items()
    ]


def with_unfinished(outcomes: Sequence[ArmOutcome]) -> list[ArmOutcome]:
    """The same arms over all tasks, those left unfinished counted as failures from the first missing trial on."""
    return [
        replace(
            arm,
            seeds=tuple(replace(one, solved_NT=one.all_solved_NT, return_NT=one.all_return_NT) for one in arm.seeds),
        )
        for arm in outcomes
    ]


@dataclass(frozen=True)
class _Attempts:
    """The attempts of one arm as columns, shape (trials, tasks)."""

    columns: Mapping[str, int]
    """Of each task id."""
    present_NT: _Flags
    failed_NT: _Flags
    """The agent tries again."""
    solved_NT: Floats
    return_NT: Floats

    @classmethod
    def none(cls, trials: int, tasks: Sequence[Task]) -> "_Attempts":
        shape = (trials, len(tasks))
        columns = {task.id: column for column, task in enumerate(tasks)}
        return cls(columns, np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(shape), np.zeros(shape))

    def copy(self) -> "_Attempts":
        return _Attempts(
            self.columns,
            self.present_NT.copy(),
            self.failed_NT.copy(),
            self.solved_NT.copy(),
            self.return_NT.copy(),
        )

    def add(self, rows: Iterable[AttemptRow]) -> None:
        for row in rows:
            column = self.columns.get(row.task_id)
            # What the infrastructure spoiled is no attempt, wherever it is kept.
            if column is None or row.trial >= len(self.present_NT) or row.outcome == Outcome.INVALID:
                continue
            if row.candidate or row.repeat:
                continue  # Evaluation makes one attempt a trial; imported facts may hold others.
            self.present_NT[row.trial, column] = True
            self.failed_NT[row.trial, column] = row.failed
            self.solved_NT[row.trial, column] = row.outcome == Outcome.SUCCESS
            self.return_NT[row.trial, column] = row.episode_return

    @property
    def reached_NT(self) -> _Flags:
        """Every trial up to this one was made, or up to the one with which the agent was content."""
        made_NT = np.logical_and.accumulate(self.present_NT)
        return made_NT | np.logical_or.accumulate(made_NT & ~self.failed_NT)

    @property
    def complete_T(self) -> _Flags:
        complete: _Flags = self.reached_NT[-1]
        return complete


def _seed_outcome(store: Store, stored: str, attempts: _Attempts, common_T: _Flags) -> SeedOutcome:
    solved_NT, return_NT = (
        _of_last(values, attempts.present_NT) for values in (attempts.solved_NT, attempts.return_NT)
    )
    reached_NT = attempts.reached_NT
    return SeedOutcome(
        stored=stored,
        solved_NT=solved_NT[:, common_T],
        return_NT=return_NT[:, common_T],
        all_solved_NT=np.where(reached_NT, solved_NT, 0.0),
        all_return_NT=np.where(reached_NT, return_NT, 0.0),
        invalid=store.invalid_count(stored),
        usage=store.usage(stored),
    )


def _of_last(values_NT: Floats, present_NT: _Flags) -> Floats:
    """What the last attempt made by each trial was worth; who is told the truth makes none after a success."""
    worth_NT = values_NT.copy()
    for trial in range(1, len(worth_NT)):
        worth_NT[trial] = np.where(present_NT[trial], values_NT[trial], worth_NT[trial - 1])
    return worth_NT


def _mean(values: Sequence[Floats]) -> Floats:
    """Element by element."""
    mean: Floats = np.mean(values, axis=0)
    return mean
