"""What the store says about the arms: who solved which task by which trial, and what is missing."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from eval.statistics import Floats
from retroformer.arms import FIRST_TRIAL, evaluation
from retroformer.records import Key, Outcome, Task, Trajectory, Usage
from retroformer.store import Store, StoredReflection


class ArmOutcome(NamedTuple):
    """One arm over the tasks that are complete in every arm."""

    name: str
    solved_NT: Floats
    """1 where task T was solved in trial N or before, shape (trials, tasks)."""
    return_NT: Floats
    """Return of the last attempt made by trial N."""
    incomplete: int
    """Tasks that the infrastructure left unfinished in this arm."""
    invalid: int
    """Spoiled attempts, each with its cause in the store."""
    usage: Usage
    reflections: dict[tuple[str, int], StoredReflection]
    """By task and trial."""
    attempts: dict[tuple[str, int], Trajectory]


def arm_outcomes(store: Store, tasks: Sequence[Task], arms: Sequence[str], trials: int) -> list[ArmOutcome]:
    """All arms on the tasks that every arm finished, so that they can be compared task by task."""
    first = {key.task_id: one for key, one in store.trajectories(FIRST_TRIAL).items()}
    attempts = {arm: _attempts(store, first, arm) for arm in arms}
    complete = {arm: {task.id for task in tasks if _complete(attempts[arm], task.id, trials)} for arm in arms}
    common = [task for task in tasks if all(task.id in complete[arm] for arm in arms)]
    return [
        ArmOutcome(
            name=arm,
            solved_NT=np.array([[_solved(attempts[arm], task.id, n) for task in common] for n in range(trials)]),
            return_NT=np.array([[_last_return(attempts[arm], task.id, n) for task in common] for n in range(trials)]),
            incomplete=len(tasks) - len(complete[arm]),
            invalid=len(store.invalid_causes(evaluation(arm))),
            usage=store.usage(evaluation(arm)),
            reflections={(one.key.task_id, one.key.trial): one for one in store.reflections(evaluation(arm))},
            attempts=attempts[arm],
        )
        for arm in arms
    ]


def _attempts(store: Store, first: dict[str, Trajectory], arm: str) -> dict[tuple[str, int], Trajectory]:
    retries: dict[Key, Trajectory] = store.trajectories(evaluation(arm))
    return {(task_id, 0): one for task_id, one in first.items()} | {
        (key.task_id, key.trial): one for key, one in retries.items()
    }


def _complete(attempts: dict[tuple[str, int], Trajectory], task_id: str, trials: int) -> bool:
    """Every trial up to the first success, or up to the last, is there."""
    for trial in range(trials):
        attempt = attempts.get((task_id, trial))
        if attempt is None:
            return False
        if attempt.outcome is Outcome.SUCCESS:
            return True
    return True


def _solved(attempts: dict[tuple[str, int], Trajectory], task_id: str, trial: int) -> float:
    made = [attempts.get((task_id, index)) for index in range(trial + 1)]
    return float(any(one is not None and one.outcome is Outcome.SUCCESS for one in made))


def _last_return(attempts: dict[tuple[str, int], Trajectory], task_id: str, trial: int) -> float:
    made = [attempts[task_id, index] for index in range(trial + 1) if (task_id, index) in attempts]
    return made[-1].episode_return
