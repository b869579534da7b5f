"""Whole records come one task at a time in a fixed order, whichever of them each arm has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from eval.report.report_input import facts_by_task
from retroformer.method.records import Key, Trajectory
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import NewTrajectory, Store
from tests.support.characters import advice, attempt_at, task
from tests.support.facts import add_trajectory

NAMES = ("B", "a", "a-b", "ab", "é", "\U0001f600")
"""Names in code-point order, which is neither alphabetical nor UTF-16 order."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")
    yield opened
    opened.close()


def attempt(name: str, trial: int) -> Trajectory:
    return attempt_at(task(name), rewards=(trial / 10,))


def fill(store: Store) -> None:
    """Store trial 0 of all but the last name; x retries all but the first, y has only the last and writes about `a`."""
    for name in reversed(NAMES[:-1]):
        add_trajectory(store, Key(arm=FIRST_TRIAL, task_id=name), attempt(name, 0))
    for name in NAMES[1:]:
        for trial in (2, 1):
            add_trajectory(store, Key(arm="eval/x", task_id=name, trial=trial), attempt(name, trial))
            store.add_reflection(Key(arm="eval/x", task_id=name, trial=trial), 0, advice(f"{name}/{trial}"))
    add_trajectory(store, Key(arm="eval/y", task_id=NAMES[-1], trial=1), attempt(NAMES[-1], 1))
    store.add_reflection(Key(arm="eval/y", task_id="a", trial=1), 0, advice("y writes"))


def test_facts_of_a_task_are_gathered_from_all_arms(store: Store) -> None:
    fill(store)
    read = facts_by_task(store, FIRST_TRIAL, {"eval/x": FIRST_TRIAL, "eval/y": FIRST_TRIAL})
    facts = {task_facts.task_id: task_facts for task_facts in read}
    assert tuple(facts) == NAMES
    assert [facts[name].first for name in NAMES] == [*(attempt(name, 0) for name in NAMES[:-1]), None]
    for name in NAMES[1:-1]:
        x, y = facts[name].seeds["eval/x"], facts[name].seeds["eval/y"]
        assert x.attempts == {trial: attempt(name, trial) for trial in range(3)}
        assert {trial: reflection.text for trial, reflection in x.reflections.items()} == {
            1: f"{name}/1",
            2: f"{name}/2",
        }
        assert y.attempts == {0: attempt(name, 0)}
        assert [reflection.text for reflection in y.reflections.values()] == (["y writes"] if name == "a" else [])
    assert facts["B"].seeds["eval/x"].attempts == {0: attempt("B", 0)}
    assert facts[NAMES[-1]].seeds["eval/y"].attempts == {1: attempt(NAMES[-1], 1)}


def test_many_arms_of_many_tasks_are_read_with_the_connections_of_one(store: Store) -> None:
    names = [f"{number:03d}" for number in range(230)]
    store.add_all(lambda: (NewTrajectory(Key(arm=FIRST_TRIAL, task_id=name), attempt(name, 0)) for name in names))
    arms = [f"eval/x/{seed}" for seed in range(20)]
    for arm in arms:
        add_trajectory(store, Key(arm=arm, task_id="229", trial=1), attempt("229", 1))
    facts = list(facts_by_task(store, FIRST_TRIAL, dict.fromkeys(arms, FIRST_TRIAL)))
    assert [task_facts.task_id for task_facts in facts] == names
    assert [len(seed.attempts) for seed in facts[-1].seeds.values()] == [2] * 20
    assert all(task_facts.first == attempt(task_facts.task_id, 0) for task_facts in facts)
