"""Tests of environments of verifiers as ours, with the real package."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers")
pytest.importorskip("retroformer.integrations.verifiers")

from retroformer.environments.registry import environment_versions, extras, fingerprint, section_of, taskset
from retroformer.errors import ConfigError, EnvironmentFailure, UnknownTask
from retroformer.method.records import Task
from tests.support import riddles


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    riddles.install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("riddles", None)


def section(**keys: Any) -> Any:
    return section_of({"name": "verifiers", "environment": "riddles"} | keys)


def task(task_id: str) -> Task:
    return Task(id=task_id, environment="verifiers", split=task_id.partition("/")[0])


def test_the_datasets_are_the_splits_and_their_rows_are_identified() -> None:
    assert [task.id for task in taskset(section()).tasks()] == [f"train/{number}" for number in range(4)]
    assert [task.id for task in taskset(section(split="held_out")).tasks()] == ["held_out/0"]
    assert fingerprint(section()) == fingerprint(section()) != fingerprint(section(split="held_out"))
    assert set(environment_versions(section())) == {"retroformer", "riddles", "verifiers"}


def test_an_environment_with_one_dataset_is_divided_and_never_evaluated_on_its_training_tasks() -> None:
    alone = {"args": {"evaluation": False}}
    with pytest.raises(ConfigError, match=r"has one dataset of 4 tasks: set environment\.held_out"):
        taskset(section(**alone, split="held_out")).tasks()
    split = [taskset(section(**alone, held_out=1, split=name)) for name in ("train", "held_out")]
    assert [len(source.tasks()) for source in split] == [3, 1]
    assert split[1].environment().reset(task("held_out/0")).observation.endswith("Say cloud backwards.")
    with pytest.raises(ConfigError, match=r"has 4 tasks: lower environment\.held_out"):
        taskset(section(**alone, held_out=4)).tasks()
    with pytest.raises(ConfigError, match="has an evaluation dataset of its own"):
        taskset(section(held_out=1)).tasks()


def test_one_turn_gets_the_reward_of_the_rubric() -> None:
    world = taskset(section()).environment()
    assert world.reset(task("train/0")).observation == "Answer with one word.\n\nSay apple backwards."
    wrong = world.step("elppa, I think")
    assert (wrong.reward, wrong.success, wrong.over) == (0.25, False, True)
    assert wrong.observation == "The rubric's reward is 0.25."
    world.reset(task("train/0"))
    right = world.step("elppa")
    assert (right.reward, right.success, right.terminated) == (1.0, True, True)
    for odd in ("train/4", "held_out/0", "train/", "train/00", "0"):
        with pytest.raises(UnknownTask):
            world.reset(task(odd))


def test_rewards_are_mapped_to_a_return_from_0_to_1() -> None:
    scale = section(lowest=-1.0, highest=3.0)
    assert [scale.scaled(reward) for reward in (-2.0, -1.0, 1.0, 3.0, 9.0)] == [0.0, 0.0, 0.5, 1.0, 1.0]
    with pytest.raises(ValueError, match="lowest must be less than highest"):
        section(lowest=1.0)


def test_turns_alternate_until_the_environment_ends_the_conversation() -> None:
    world = taskset(section(args={"kind": "turns"}, highest=2.0)).environment()
    assert world.reset(task("train/1")).observation == "Say river backwards."
    first = world.step("river")
    assert (first.observation, first.over, first.reward) == ("Not river.", False, 0.0)
    last = world.step("revir")
    assert (last.observation, last.terminated, last.success, last.reward) == (
        "Yes.\nThe rubric's reward is 2.",
        True,
        True,
        1.0,
    )
    # A second episode in the same environment, to the limit of its turns.
    world.reset(task("train/0"))
    assert not world.step("a").over
    # A rollout that is given up leaves nothing behind.
    world.reset(task("train/2"))
    played = [world.step(word) for word in ("a", "b", "c")]
    assert [(step.over, step.truncated) for step in played] == [(False, False), (False, False), (True, True)]
    assert played[-1].reward == 0


def test_our_own_limit_of_turns_truncates() -> None:
    world = taskset(section(args={"kind": "turns"}, max_steps=2)).environment()
    world.reset(task("train/1"))
    assert [world.step(word).truncated for word in ("a", "b")] == [False, True]


def test_tools_are_offered_and_an_action_in_the_form_of_a_call_is_one() -> None:
    world = taskset(section(args={"kind": "tools"})).environment()
    opening = world.reset(task("train/2"))
    assert opening.tools is not None
    assert [tool.name for tool in opening.tools] == ["backwards"]
    assert "word" in opening.tools[0].parameters["properties"]
    called = world.step('backwards({"word": "stone"})')
    assert (called.observation, called.over) == ("enots", False)
    # A tool that raises tells the agent so.
    assert "argument" in world.step('backwards({"letters": "stone"})').observation
    assert world.step("enots").success


def test_a_failure_of_the_infrastructure_is_no_return_of_0() -> None:
    world = taskset(section(args={"kind": "turns"})).environment()
    world.reset(task("train/1"))
    with pytest.raises(EnvironmentFailure, match="the line went dead"):
        world.step("break")
    assert world.reset(task("train/1")).observation == "Say river backwards."


def test_an_environment_that_cannot_be_loaded_is_named() -> None:
    for odd in (section(environment="no_such_riddles"), section(args={"colour": 1})):
        with pytest.raises(ConfigError, match=r"of verifiers cannot be loaded: .* Correct environment\.environment"):
            extras(odd).require_machine(odd)


def test_the_handlers_of_signals_stay_ours() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    taskset(section()).tasks()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
