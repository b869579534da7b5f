"""What the store says about the arms: who solved which task by which trial, and what is missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eval.statistics import Floats
from retroformer.arms import FIRST_TRIAL
from retroformer.records import Outcome, Task, Trajectory, Usage
from retroformer.store import Store, StoredReflection

Attempts = dict[tuple[str, int], Trajectory]
"""By task and trial."""


@dataclass(frozen=True)
class SeedOutcome:
    """One training seed of an arm, or an arm that has none, over the tasks that are complete in every arm."""

    stored: str
    """Its name in the store, such as `eval/trained/ppo-1`."""
    solved_NT: Floats
    """1 where the last attempt made by trial N solved task T, shape (trials, tasks)."""
    return_NT: Floats
    """Return of the last attempt made by trial N."""
    invalid: int
    """Spoiled attempts, each with its cause in the store."""
    usage: Usage
    reflections: dict[tuple[str, int], StoredReflection]
    """By task and trial."""
    attempts: Attempts

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
    first = {key.task_id: one for key, one in store.trajectories(shared).items()}
    attempts = {stored: _attempts(store, first, stored) for names in arms.values() for stored in names}
    complete = {
        stored: {task.id for task in tasks if _complete(made, task.id, trials)} for stored, made in attempts.items()
    }
    common = [task for task in tasks if all(task.id in finished for finished in complete.values())]
    return [
        ArmOutcome(
            name=arm,
            seeds=tuple(_seed_outcome(store, common, stored, attempts[stored], trials) for stored in names),
            incomplete=len(tasks) - len(set.intersection(*(complete[stored] for stored in names))),
        )
        for arm, names in arms.items()
    ]


def _seed_outcome(store: Store, tasks: Sequence[Task], stored: str, attempts: Attempts, trials: int) -> SeedOutcome:
    return SeedOutcome(
        stored=stored,
        solved_NT=_of_last(attempts, tasks, trials, lambda attempt: float(attempt.outcome is Outcome.SUCCESS)),
        return_NT=_of_last(attempts, tasks, trials, lambda attempt: attempt.episode_return),
        invalid=len(store.invalid_causes(stored)),
        usage=store.usage(stored),
        reflections={(one.key.task_id, one.key.trial): one for one in store.reflections(stored)},
        attempts=attempts,
    )


def _of_last(attempts: Attempts, tasks: Sequence[Task], trials: int, worth: Callable[[Trajectory], float]) -> Floats:
    """What the last attempt made by each trial was worth, shape (trials, tasks)."""
    return np.array([[worth(_last(attempts, task.id, trial)) for task in tasks] for trial in range(trials)])


def _mean(values: Sequence[Floats]) -> Floats:
    """Element by element."""
    mean: Floats = np.mean(values, axis=0)
    return mean


def _attempts(store: Store, first: dict[str, Trajectory], stored: str) -> Attempts:
    retries = {(key.task_id, key.trial): one for key, one in store.trajectories(stored).items()}
    return {(task_id, 0): one for task_id, one in first.items()} | retries


def _complete(attempts: Attempts, task_id: str, trials: int) -> bool:
    """Every trial up to the one with which the agent was content, or up to the last, is there."""
    for trial in range(trials):
        attempt = attempts.get((task_id, trial))
        if attempt is None:
            return False
        if not attempt.failed:
            return True
    return True


def _last(attempts: Attempts, task_id: str, trial: int) -> Trajectory:
    """The last attempt made by this trial; an agent that is told the truth makes none after a success."""
    return next(attempts[task_id, index] for index in range(trial, -1, -1) if (task_id, index) in attempts)
