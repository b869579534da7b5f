"""Test that each unit of work is done once, charged once, and retried if the infrastructure failed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from retroformer.config.sections.base import Collect, Loop, RetryPlan
from retroformer.errors import BudgetExhausted
from retroformer.method.protocols import Actor, Agent, Move, Scene
from retroformer.method.rating import ratings
from retroformer.method.records import Key, Memory, Outcome, Task, Usage
from retroformer.run.attempts import Budget, Experience
from retroformer.run.ledger import Ledger
from retroformer.run.store import Store
from tests.support.characters import CAPITAL, PRICE, ActorThatNeedsAdvice, Riddle, School, Teacher, task
from tests.support.facts import add_trajectory, causes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")
    yield opened
    opened.close()


def experience(
    store: Store,
    school: School | None = None,
    teacher: Teacher | None = None,
    *,
    actor: Actor | None = None,
    arm: str = "collect",
    seed: int = 0,
    slots: int = 8,
    budget: Budget | None = None,
    retries: int = 2,
    events: list[str] | None = None,
    candidates: int = 2,
    repeats: int = 1,
    first_trial_arm: str | None = None,
) -> Experience:
    return Experience(
        Ledger(store),
        arm,
        school or School(),  # type: ignore[arg-type]
        Agent(actor or ActorThatNeedsAdvice(), teacher or Teacher()),
        Loop(retries=retries),
        seed,
        budget or Budget(Collect(), Usage),
        slots=asyncio.Semaphore(slots),
        on_event=(events if events is not None else []).append,
        plan=RetryPlan(candidates=candidates, repeats=repeats),
        first_trial_arm=first_trial_arm,
    )


def improve(made: Experience, *names: str) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*(made.improve(task(name)) for name in names or (CAPITAL.id,)))

    asyncio.run(all_of_them())


def outcomes(store: Store, arm: str = "collect") -> list[tuple[int, int, str]]:
    return [(key.trial, key.candidate, trajectory.outcome.value) for key, trajectory in store.stream_trajectories(arm)]


def test_a_failure_gets_a_pair_of_reflections_and_both_retries_are_stored(store: Store) -> None:
    improve(experience(store))
    assert outcomes(store) == [(0, 0, "failure"), (1, 0, "success"), (1, 1, "success")]
    assert [stored.key for stored in store.stream_reflections("collect")] == [
        key for key, _ in store.stream_trajectories("collect")
    ][1:]
    assert [reflection.rating for reflection in ratings(store, "collect", records=True)] == [1.0, 1.0]


def test_stored_work_is_never_repeated(store: Store) -> None:
    school, teacher = School(), Teacher()
    improve(experience(store, school, teacher))
    improve(experience(store, school, teacher))
    assert (school.opened, teacher.calls) == (3, 2)


def test_only_a_missing_fact_in_the_middle_is_made(store: Store, tmp_path: Path) -> None:
    improve(experience(store))
    short = Store(f"sqlite:///{tmp_path / 'short.db'}", "riddles")
    for key, trajectory in store.stream_trajectories("collect"):
        if (key.trial, key.candidate) != (1, 1):
            add_trajectory(short, key, trajectory)
    for stored in store.stream_reflections("collect"):
        short.add_reflection(stored.key, stored.previous_candidate, stored.reflection)
    school, teacher = School(), Teacher()
    improve(experience(short, school, teacher))
    assert (school.opened, teacher.calls) == (1, 0)
    assert outcomes(short) == outcomes(store)
    short.close()


def test_an_invalid_attempt_is_retried_and_counted(store: Store) -> None:
    school, events = School(broken=2), list[str]()
    improve(experience(store, school, events=events))
    assert outcomes(store)[0] == (0, 0, "failure")
    assert causes(store, "collect") == ["The school is closed."] * 2
    assert school.opened == 2 + 3


def test_an_attempt_that_stays_invalid_is_left_for_the_next_run(store: Store) -> None:
    events = list[str]()
    improve(experience(store, School(broken=99), events=events))
    assert outcomes(store) == []
    assert store.arm_counts()["collect"].invalid == 3
    assert events == ["invalid"]
    improve(experience(store))
    assert outcomes(store) == [(0, 0, "failure"), (1, 0, "success"), (1, 1, "success")]


def test_a_failed_reflection_is_retried(store: Store) -> None:
    teacher = Teacher(lambda call: "Say Paris." if call >= 2 else None)
    improve(experience(store, teacher=teacher, candidates=1))
    assert teacher.calls == 3
    assert outcomes(store)[-1] == (1, 0, "success")
    assert store.arm_counts()["collect"].invalid == 2


def test_missing_advice_leaves_the_task_unrated_and_is_not_a_return_of_0(store: Store) -> None:
    improve(experience(store, teacher=Teacher(lambda call: None), candidates=1))
    assert outcomes(store) == [(0, 0, "failure")]
    assert list(store.stream_reflections("collect")) == []
    assert list(ratings(store, "collect", records=True)) == []
    assert store.arm_counts()["collect"].invalid == 3


def test_a_retried_reflection_keeps_its_seed(store: Store) -> None:
    teacher = Teacher(lambda call: "Say Paris." if call == 1 else None)
    improve(experience(store, teacher=teacher, candidates=1))
    assert teacher.seeds[0] == teacher.seeds[1]


def test_candidates_tasks_and_experiments_draw_with_different_seeds_and_arms_with_the_same(store: Store) -> None:
    seeds: dict[str, list[int]] = {}
    for arm, seed, names in (("a", 0, ("x", "y")), ("b", 0, ("x", "y")), ("c", 1, ("x", "y"))):
        teacher = Teacher()
        improve(experience(store, teacher=teacher, arm=arm, seed=seed), *names)
        seeds[arm] = sorted(teacher.seeds)
    assert len(set(seeds["a"])) == 4
    assert seeds["a"] == seeds["b"]
    assert not set(seeds["a"]) & set(seeds["c"])


class ActorThatNotesItsSeeds:
    """Actor that answers wrongly and records its seeds."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    async def act(self, scene: Scene) -> Move:
        self.seeds.append(scene.seed)
        return Move(action="Lyon")


def test_every_attempt_has_its_own_seed_and_arms_share_it(store: Store) -> None:
    seeds: dict[str, list[int]] = {}
    for arm, seed in (("a", 0), ("b", 0), ("c", 1)):
        actor = ActorThatNotesItsSeeds()
        improve(experience(store, actor=actor, arm=arm, seed=seed, repeats=2), "x", "y")
        seeds[arm] = sorted(actor.seeds)
    assert len(set(seeds["a"])) == len(seeds["a"]) == 2 * (1 + 2 * 2 * 2)
    assert seeds["a"] == seeds["b"]
    assert not set(seeds["a"]) & set(seeds["c"])


def test_repeats_play_the_same_advice_several_times_but_trial_0_once(store: Store) -> None:
    school, teacher = School(), Teacher()
    improve(experience(store, school, teacher, repeats=3))
    assert (school.opened, teacher.calls) == (1 + 2 * 3, 2)
    assert all(len(reflection.returns_after) == 3 for reflection in ratings(store, "collect", records=True))


def test_arms_share_the_first_trial_and_nothing_else(store: Store) -> None:
    for arm in ("eval/a", "eval/b"):
        improve(experience(store, arm=arm, first_trial_arm="eval/trial 0", candidates=1))
    assert outcomes(store, "eval/trial 0") == [(0, 0, "failure")]
    assert outcomes(store, "eval/a") == outcomes(store, "eval/b") == [(1, 0, "success")]


class SchoolThatFills(School):
    """School whose first lessons last until three run at once, and then a little longer."""

    def __init__(self) -> None:
        super().__init__()
        self._full = asyncio.Event()

    @asynccontextmanager
    async def episode(self, subject: Task) -> AsyncIterator[Riddle]:
        async with super().episode(subject) as riddle:
            if self._open >= 3:
                self._full.set()
            await self._full.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            yield riddle


def test_no_more_episodes_are_open_than_there_are_slots(store: Store) -> None:
    school = SchoolThatFills()
    improve(experience(store, school, slots=3, candidates=4), *"abcdefgh")
    assert school.most_at_once == 3
    assert school.opened == 8 * 5


def test_an_attempt_that_another_process_stored_first_counts(store: Store) -> None:
    key = Key(arm="collect", task_id=CAPITAL.id)
    made = experience(store)
    advised = asyncio.run(made.trajectory(CAPITAL, Memory(reflections=("Paris",)), key))
    assert advised.outcome is Outcome.SUCCESS
    assert asyncio.run(made.trajectory(CAPITAL, Memory(), key)) == advised


def test_a_spent_budget_stops_before_the_next_unit_and_keeps_units_in_flight(store: Store) -> None:
    # A rollout costs 110 tokens: trial 0 spends 110, the two reflections 220 more, and then 330 >= 300.
    with pytest.raises(BudgetExhausted, match=r"300 tokens is spent \(330\).*collect.tokens"):
        improve(experience(store, slots=2, budget=Budget(Collect(tokens=300), lambda: store.usage("collect"))))
    assert outcomes(store) == [(0, 0, "failure")]
    assert len(list(store.stream_reflections("collect"))) == 2


class PatientActor:
    """Actor that answers wrongly, and slowly from the second attempt on."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    async def act(self, scene: Scene) -> Move:
        self.begun += 1
        for _ in range(50 if self.begun > 1 else 0):
            await asyncio.sleep(0.002)
        self.ended += 1
        return Move(action="Lyon", usage=PRICE)


def test_repeats_that_are_in_flight_when_the_budget_ends_are_finished_and_kept(store: Store) -> None:
    # Trial 0 costs 110 tokens, the reflection as many, and the first repeat may start; the second may not.
    actor, limits = PatientActor(), Collect(tokens=220)
    checks = iter([Usage(), Usage(), Usage()])
    budget = Budget(limits, lambda: next(checks, Usage(prompt_tokens=10**6)))
    with pytest.raises(BudgetExhausted):
        improve(experience(store, actor=actor, repeats=2, budget=budget, candidates=1))
    assert actor.begun == actor.ended == 2
    assert outcomes(store) == [(0, 0, "failure"), (1, 0, "failure")]


def test_the_budget_includes_the_usage_of_earlier_runs(store: Store) -> None:
    improve(experience(store))
    assert store.usage("collect") == Usage(calls=5, prompt_tokens=500, completion_tokens=50, dollars=2.5)
    with pytest.raises(BudgetExhausted, match=r"2.5 dollars is spent \(2.5\).*collect.dollars"):
        improve(experience(store, budget=Budget(Collect(dollars=2.5), lambda: store.usage("collect"))), "another task")


def test_a_spent_budget_does_not_stop_stored_work(store: Store) -> None:
    improve(experience(store))
    improve(experience(store, budget=Budget(Collect(tokens=1), lambda: store.usage("collect"))))
    assert len(outcomes(store)) == 3
