"""Results of the arms from the store: which tasks each has solved by which trial.

The environment says what is solved, and the agent's evaluator only whether the agent tries again. A game that is won
stays won, even if the agent plays it again (the cumulative curves of Reflexion, Fig. 3a). A program is handed in when
the agent is content with its own tests, so its last one counts (pass@1 of Reflexion, Table 1). Every rate is over
either the tasks that every arm finished, or all tasks with unfinished ones counted as failures.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from retroformer.method.records import Outcome, Task, Usage
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import AttemptRow, Store

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class SeedResult:
    """Results of one training seed of an arm, or of an arm without training seeds, on all tasks or some of them."""

    stored: str
    """Name in the store, such as `eval/trained/ppo-1`."""
    solved_NT: Floats
    """1 if task T is solved by trial N, else 0; shape (trials, tasks). An unsolved task counts so in trials that are
    missing."""
    return_NT: Floats
    """Return of the attempt that counts by trial N, the last or the one that solved the task; 0 for an unsolved task
    from the first missing trial on; of the same shape."""
    finished_T: Flags
    """True for each task that was finished; always over all tasks."""
    invalid: int
    """Number of invalid attempts; the store has the cause of each."""
    usage: Usage
    first_trial: str = FIRST_TRIAL

    def solved_by(self, trial: int) -> Floats:
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
    shares_first: bool = True
    """False if its trial 0 is played under other conditions than that of the other arms."""
    last_counts: bool = False
    """True if the last attempt at a task counts, even after one that solved it."""

    @property
    def stored_names(self) -> tuple[str, ...]:
        return tuple(seed.stored for seed in self.seeds)

    @property
    def pooled(self) -> bool:
        return len(self.seeds) > 1

    @property
    def finished_T(self) -> Flags:
        """True for each of all tasks that every seed finished."""
        finished_T: Flags = np.logical_and.reduce([seed.finished_T for seed in self.seeds])
        return finished_T

    @property
    def incomplete(self) -> int:
        """Number of all tasks that a seed left unfinished."""
        return int((~self.finished_T).sum())

    def on(self, chosen_T: Flags) -> "ArmResult":
        """Return the results of an arm, which are on all tasks, on some of them."""
        seeds = (
            replace(seed, solved_NT=seed.solved_NT[:, chosen_T], return_NT=seed.return_NT[:, chosen_T])
            for seed in self.seeds
        )
        return replace(self, seeds=tuple(seeds))

    @cached_property
    def solved_NT(self) -> Floats:
        """Share of the seeds that solved task T by trial N."""
        solved_NT: Floats = np.mean([seed.solved_NT for seed in self.seeds], axis=0)
        return solved_NT

    def solved_by(self, trial: int) -> Floats:
        """Return what is resampled for the share solved by a trial: (T), or with several training seeds (S, T)."""
        by_seed = [seed.solved_by(trial) for seed in self.seeds]
        return np.stack(by_seed) if self.pooled else by_seed[0]

    def share_solved(self, trial: int) -> float:
        """Return the share of the tasks that are solved by a trial, a mean over the seeds."""
        return float(self.solved_NT[trial].mean())

    @cached_property
    def return_NT(self) -> Floats:
        """Mean return of the attempts that count by trial N."""
        return_NT: Floats = np.mean([seed.return_NT for seed in self.seeds], axis=0)
        return return_NT

    def returns_by(self, trial: int) -> Floats:
        """Give the returns of the attempts that count by a trial, resampled as those of `solved_by`: (T), or (S, T)."""
        by_seed = [seed.return_NT[trial] for seed in self.seeds]
        return np.stack(by_seed) if self.pooled else by_seed[0]

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
    *,
    last_counts: bool = False,
) -> list[ArmResult]:
    """Return the results of all arms on all tasks; one that is unsolved fails from its first missing trial on.

    `arms` has the names in the store of each arm, one for each training seed; `own` the other name of trial 0 of those
    that do not share the one of the name `shared`. With `last_counts` the last attempt at a task counts, even after one
    that solved it.
    """
    firsts = {stored: (own or {}).get(stored, shared) for names in arms.values() for stored in names}
    columns = {task.id: column for column, task in enumerate(tasks)}
    rows = {first: list(store.attempt_rows(first)) for first in dict.fromkeys(firsts.values())}
    counts, accounts = store.arm_counts(), store.accounts()

    def seed_result(stored: str) -> SeedResult:
        made = chain(rows[firsts[stored]], store.attempt_rows(stored))
        attempts = _Attempts.read(made, columns, trials, last_counts)
        return SeedResult(
            stored=stored,
            solved_NT=attempts.counted(attempts.solved_NT),
            return_NT=attempts.counted(attempts.return_NT),
            finished_T=attempts.reached_NT[-1],
            invalid=counts[stored].invalid,
            usage=accounts.get(stored, Usage()),
            first_trial=firsts[stored],
        )

    return [
        ArmResult(
            name=arm,
            seeds=tuple(map(seed_result, names)),
            shares_first=all(firsts[stored] == shared for stored in names),
            last_counts=last_counts,
        )
        for arm, names in arms.items()
    ]


def first_trials(results: Sequence[ArmResult]) -> dict[str, list[ArmResult]]:
    """Return the arms that share each trial 0, by its name in the store."""
    names = dict.fromkeys(seed.first_trial for arm in results for seed in arm.seeds)
    return {name: [arm for arm in results if any(seed.first_trial == name for seed in arm.seeds)] for name in names}


def arms_and_seeds(results: Sequence[ArmResult]) -> Iterable[ArmResult | SeedResult]:
    for arm in results:
        yield arm
        yield from arm.seeds if arm.pooled else ()


@dataclass(frozen=True)
class _Attempts:
    """Attempts of one arm as arrays of shape (trials, tasks)."""

    present_NT: Flags
    failed_NT: Flags
    """True if the agent judged the attempt as failed and retries."""
    solved_NT: Floats
    return_NT: Floats
    last_counts: bool

    @classmethod
    def read(
        cls, rows: Iterable[AttemptRow], columns: Mapping[str, int], trials: int, last_counts: bool
    ) -> "_Attempts":
        """Read the attempts; `columns` are those of the task ids."""
        present_NT, failed_NT = np.zeros((2, trials, len(columns)), bool)
        solved_NT, return_NT = np.zeros((2, trials, len(columns)))
        for row in rows:
            # An invalid attempt does not count, wherever it is stored.
            if row.task_id not in columns or row.trial >= trials or row.outcome == Outcome.INVALID:
                continue
            if row.candidate or row.repeat:
                continue  # Evaluation makes one attempt per trial; imported facts may hold more.
            place = row.trial, columns[row.task_id]
            present_NT[place], failed_NT[place] = True, row.failed
            solved_NT[place], return_NT[place] = row.outcome == Outcome.SUCCESS, row.episode_return
        return cls(present_NT, failed_NT, solved_NT, return_NT, last_counts)

    @property
    def reached_NT(self) -> Flags:
        """True if every trial up to this one was made, or every trial up to one that the agent judged as solved."""
        made_NT = np.logical_and.accumulate(self.present_NT)
        return made_NT | np.logical_or.accumulate(made_NT & ~self.failed_NT)

    def counted(self, values_NT: Floats) -> Floats:
        """Return the value of the attempt that counts by each trial: the last, or the one that won the game.

        0 from the first missing trial on, unless the game is won.
        """
        won_NT, counted_NT = self._won_NT, values_NT.copy()
        for trial in range(1, len(counted_NT)):
            counts_T = self.present_NT[trial] & ~won_NT[trial - 1]
            counted_NT[trial] = np.where(counts_T, values_NT[trial], counted_NT[trial - 1])
        return np.where(self.reached_NT | won_NT, counted_NT, 0.0)

    @property
    def _won_NT(self) -> Flags:
        """True if an attempt by this trial has won the game; never if the last attempt counts."""
        made_NT = np.logical_and.accumulate(self.present_NT)
        won_NT: Flags = np.logical_or.accumulate(made_NT & (self.solved_NT == 1))
        return won_NT & (not self.last_counts)
