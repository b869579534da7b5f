"""Results of the arms from the store: which tasks are solved by which trial, and which are unfinished."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from retroformer.arm_names import FIRST_TRIAL
from retroformer.records import Outcome, Task, Usage
from retroformer.store import AttemptRow, Store

from .statistics import Floats

_Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class SeedResult:
    """Results of one training seed of an arm, or of an arm without training seeds."""

    stored: str
    """Name in the store, such as `eval/trained/ppo-1`."""
    solved_NT: Floats
    """1 if the last attempt made by trial N solved task T, else 0; shape (trials, tasks finished in every arm)."""
    return_NT: Floats
    """Return of the last attempt made by trial N, of the same shape."""
    all_solved_NT: Floats
    """Same as `solved_NT` over all tasks, shape (trials, tasks); 0 from the first missing trial on."""
    all_return_NT: Floats
    """Same as `return_NT` over all tasks, shape (trials, tasks); 0 from the first missing trial on."""
    invalid: int
    """Number of invalid attempts; the store has the cause of each."""
    usage: Usage
    first_trial: str = FIRST_TRIAL
    """Name of its trial 0 in the store."""

    def solved_by(self, trial: int) -> Floats:
        """Return 1 for each task solved by a trial, else 0, (T)."""
        solved_T: Floats = self.solved_NT[trial]
        return solved_T

    @property
    def name(self) -> str:
        """Name of the arm, followed by the model if the arm pools several: `trained/ppo-1`."""
        return self.stored.removeprefix("eval/")


@dataclass(frozen=True)
class ArmResult:
    """Results of an arm of the config: means over its training seeds."""

    name: str
    seeds: tuple[SeedResult, ...]
    incomplete: int
    """Number of tasks that the infrastructure left unfinished in a seed of this arm."""
    shares_first: bool = True
    """False if its trial 0 is played under other conditions than that of the other arms."""

    @property
    def stored_names(self) -> tuple[str, ...]:
        """Names of the training seeds in the store."""
        return tuple(seed.stored for seed in self.seeds)

    @property
    def pooled(self) -> bool:
        """True if there are several training seeds."""
        return len(self.seeds) > 1

    @cached_property
    def solved_NT(self) -> Floats:
        """Share of the seeds whose last attempt made by trial N solved task T."""
        return _mean([seed.solved_NT for seed in self.seeds])

    def solved_by(self, trial: int) -> Floats:
        """Return what is resampled for the share solved by a trial: (T), or with several training seeds (S, T)."""
        by_seed = [seed.solved_by(trial) for seed in self.seeds]
        return np.stack(by_seed) if self.pooled else by_seed[0]

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


def arm_results(
    store: Store,
    tasks: Sequence[Task],
    arms: Mapping[str, Sequence[str]],
    trials: int,
    shared: str = FIRST_TRIAL,
    own: Mapping[str, str] | None = None,
) -> list[ArmResult]:
    """Return the results of all arms on the tasks that every arm finished, to be compared task by task.

    `arms` maps each name in the config to its names in the store, one for each training seed. `shared` is the name of
    trial 0 in the store; `own` has the other name of that of arms whose first attempts have conditions of their own.
    """
    firsts = {stored: (own or {}).get(stored, shared) for names in arms.values() for stored in names}
    played = {first: _Attempts.empty(trials, tasks) for first in firsts.values()}
    for first, first_attempts in played.items():
        first_attempts.add(store.attempt_rows(first))
    attempts = {stored: played[firsts[stored]].copy() for names in arms.values() for stored in names}
    for stored, arm_attempts in attempts.items():
        arm_attempts.add(store.attempt_rows(stored))
    complete = {stored: arm_attempts.complete_T for stored, arm_attempts in attempts.items()}
    common_T = np.logical_and.reduce([np.ones(len(tasks), dtype=bool), *complete.values()])
    return [
        ArmResult(
            name=arm,
            seeds=tuple(_seed_result(store, stored, firsts[stored], attempts[stored], common_T) for stored in names),
            incomplete=len(tasks) - int(np.logical_and.reduce([complete[stored] for stored in names]).sum()),
            shares_first=all(firsts[stored] == shared for stored in names),
        )
        for arm, names in arms.items()
    ]


def first_trials(results: Sequence[ArmResult]) -> dict[str, list[ArmResult]]:
    """Return the arms that share each trial 0, by its name in the store."""
    names = dict.fromkeys(seed.first_trial for arm in results for seed in arm.seeds)
    return {name: [arm for arm in results if any(seed.first_trial == name for seed in arm.seeds)] for name in names}


def with_unfinished(results: Sequence[ArmResult]) -> list[ArmResult]:
    """Return the same arms over all tasks; an unfinished task counts as failed from its first missing trial on."""
    return [
        replace(
            arm,
            seeds=tuple(
                replace(seed, solved_NT=seed.all_solved_NT, return_NT=seed.all_return_NT) for seed in arm.seeds
            ),
        )
        for arm in results
    ]


@dataclass(frozen=True)
class _Attempts:
    """Attempts of one arm as arrays of shape (trials, tasks)."""

    columns: Mapping[str, int]
    """Column of each task id."""
    present_NT: _Flags
    failed_NT: _Flags
    """True if the agent judged the attempt as failed and retries."""
    solved_NT: Floats
    return_NT: Floats

    @classmethod
    def empty(cls, trials: int, tasks: Sequence[Task]) -> "_Attempts":
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
            # An attempt that the infrastructure spoiled does not count, wherever it is stored.
            if column is None or row.trial >= len(self.present_NT) or row.outcome == Outcome.INVALID:
                continue
            if row.candidate or row.repeat:
                continue  # Evaluation makes one attempt per trial; imported facts may hold more.
            self.present_NT[row.trial, column] = True
            self.failed_NT[row.trial, column] = row.failed
            self.solved_NT[row.trial, column] = row.outcome == Outcome.SUCCESS
            self.return_NT[row.trial, column] = row.episode_return

    @property
    def reached_NT(self) -> _Flags:
        """True if every trial up to this one was made, or every trial up to one that the agent judged as solved."""
        made_NT = np.logical_and.accumulate(self.present_NT)
        return made_NT | np.logical_or.accumulate(made_NT & ~self.failed_NT)

    @property
    def complete_T(self) -> _Flags:
        complete: _Flags = self.reached_NT[-1]
        return complete


def _seed_result(store: Store, stored: str, first: str, attempts: _Attempts, common_T: _Flags) -> SeedResult:
    solved_NT, return_NT = (
        _of_last(values, attempts.present_NT) for values in (attempts.solved_NT, attempts.return_NT)
    )
    reached_NT = attempts.reached_NT
    return SeedResult(
        stored=stored,
        solved_NT=solved_NT[:, common_T],
        return_NT=return_NT[:, common_T],
        all_solved_NT=np.where(reached_NT, solved_NT, 0.0),
        all_return_NT=np.where(reached_NT, return_NT, 0.0),
        invalid=store.invalid_count(stored),
        usage=store.usage(stored),
        first_trial=first,
    )


def _of_last(values_NT: Floats, present_NT: _Flags) -> Floats:
    """Return the value of the last attempt made by each trial.

    The agent makes no attempt after one that it judges as solved.
    """
    last_NT = values_NT.copy()
    for trial in range(1, len(last_NT)):
        last_NT[trial] = np.where(present_NT[trial], values_NT[trial], last_NT[trial - 1])
    return last_NT


def _mean(values: Sequence[Floats]) -> Floats:
    """Return the element-wise mean."""
    mean: Floats = np.mean(values, axis=0)
    return mean
