"""Test that columns show exactly which tasks the loop would find complete, and that work is shared without gaps."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from retroformer.config.sections.base import Collect, Loop, RetryPlan
from retroformer.errors import StoreError
from retroformer.method.protocols import Agent
from retroformer.method.records import Outcome, Reflection, Task, Trajectory, Usage
from retroformer.method.rollout import improve, is_complete
from retroformer.run.attempts import Budget, Experience
from retroformer.run.ledger import Ledger
from retroformer.run.schedule import Work, work_through
from retroformer.run.store import AttemptRow, Store
from tests.support.characters import ActorThatNeedsAdvice, School, Teacher, advice, attempt_at, task

TRIALS, CANDIDATES = 4, 3


@pytest.mark.parametrize("seed", range(200))
def test_a_task_is_complete_if_the_loop_finds_every_fact(seed: int) -> None:
    chance = random.Random(seed)
    share, repeats = chance.choice([0.5, 0.9, 1.0]), chance.choice([1, 3])
    attempts: dict[tuple[int, int, int], Trajectory] = {}
    advised: dict[tuple[int, int], Reflection] = {}
    for trial in range(TRIALS):
        for candidate in range(CANDIDATES if trial else 1):
            for repeat in range(repeats if trial else 1):
                if chance.random() <= share:
                    reward = chance.choice([0.0, 0.0, 0.3, 1.0])
                    outcome = Outcome.SUCCESS if reward == 1.0 else Outcome.FAILURE
                    attempts[trial, candidate, repeat] = attempt_at(rewards=(reward,), outcome=outcome)
            if trial and chance.random() <= share:
                advised[trial, candidate] = advice(f"{trial}.{candidate}")
    missing = list[object]()

    async def attempt(memory: object, trial: int, candidate: int) -> Trajectory:
        made = [attempts.get((trial, candidate, repeat)) for repeat in range(repeats if trial else 1)]
        missing.extend(repeat for repeat, attempt in enumerate(made) if attempt is None)
        return next(iter(made)) or attempt_at(outcome=Outcome.INVALID)

    async def advise(failure: object, memory: object, trial: int, candidate: int, previous: int) -> Reflection:
        if reflection := advised.get((trial, candidate)):
            return reflection
        missing.append((trial, candidate))
        return advice("made now")

    plan = RetryPlan(candidates=CANDIDATES, repeats=repeats)
    asyncio.run(improve(attempt, advise, Loop(trials=TRIALS), plan))
    complete = is_complete(attempts, set(advised), TRIALS, plan)
    assert complete is (not missing)


class Counted:
    """Counts of finished tasks and of stored attempts."""

    def __init__(self) -> None:
        self.tasks = self.attempts = 0

    def __call__(self, attempts: Sequence[AttemptRow], tasks: int) -> None:
        self.tasks, self.attempts = self.tasks + tasks, self.attempts + len(attempts)


def work(folder: Path, tasks: Sequence[Task], school: School, counted: Counted, arm: str = "collect") -> None:
    async def run() -> None:
        with (
            closing(Store(f"sqlite:///{folder / 'experience.db'}", "riddles")) as store,
            closing(Ledger(store)) as ledger,
        ):
            pool: Any = school
            experience = Experience(
                ledger,
                arm,
                pool,
                Agent(ActorThatNeedsAdvice(), Teacher()),
                Loop(),
                0,
                Budget(Collect(), Usage),
                slots=asyncio.Semaphore(4),
                plan=Collect(),
            )
            await work_through(ledger, [Work(experience, tasks)], 4, counted)

    asyncio.run(run())


def test_all_tasks_are_done_once_and_complete_in_the_next_run(tmp_path: Path) -> None:
    tasks = [task(f"riddle {number}") for number in range(30)]
    school, first, second = School(), Counted(), Counted()
    work(tmp_path, tasks[:20], school, first)
    assert (school.opened, first.tasks, first.attempts) == (60, 20, 0)
    work(tmp_path, tasks, school, second)
    assert (school.opened, second.tasks, second.attempts) == (90, 30, 60)
    with closing(Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")) as store:
        assert store.leases.take("collect", [task.id for task in tasks], 99) == [task.id for task in tasks]


def test_an_error_ends_the_work_after_units_in_flight_have_finished(tmp_path: Path) -> None:
    class SchoolThatBurns(School):
        """School whose store is removed after the fifth lesson."""

        def episode(self, task: Task) -> Any:
            if self.opened == 5:
                raise StoreError("The school has burnt down.")
            return super().episode(task)

    tasks, counted = [task(f"riddle {number}") for number in range(30)], Counted()
    with pytest.raises(StoreError, match="burnt down"):
        work(tmp_path, tasks, SchoolThatBurns(), counted)
    with closing(Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")) as store:
        assert store.arm_counts()["collect"].attempts == 5
        assert len(store.leases.take("collect", [task.id for task in tasks], 99)) == 30
