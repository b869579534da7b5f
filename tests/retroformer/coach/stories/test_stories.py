"""Tests of stories: the turns of a task, the way that the method went, ratings, memory, first differences and flags."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.coach.stories.reading import StoryLine, read_story, shared_trial, story_arms, story_lines
from retroformer.coach.stories.story import Story, first_difference
from retroformer.method.records import Step
from retroformer.run.arm_names import COLLECT
from retroformer.run.store import Store
from tests.support.stories import EVAL, write_run


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(f"sqlite:///{write_run(tmp_path)}", "doors", read_only=True)) as store:
        yield store


def story(store: Store, arm: str) -> Story:
    story = read_story(store, arm, "door-1")
    assert story is not None
    return story


def test_a_story_has_every_turn_in_order_and_the_way_that_the_method_went(store: Store) -> None:
    collected = story(store, COLLECT)
    assert [turn.place for turn in collected.turns] == ["0.0", "1.0", "1.1", "1.2", "2.0"]
    # The second candidate has the highest return, .5, so the next advice is about it.
    assert [turn.place for turn in collected.chain] == ["0.0", "1.1", "2.0"]
    last = collected.turns[-1]
    assert [turn.place for turn in collected.path_to(last)] == ["0.0", "1.1", "2.0"]
    assert last.previous == collected.turns[2].key
    assert collected.causes == ("EndpointFailure: the server answered 500",)


def test_a_rating_is_the_mean_gain_over_the_attempt_that_the_advice_is_about(store: Store) -> None:
    collected = story(store, COLLECT)
    # Returns: 0, then 0 and .5; the third candidate was not played; then 1 and 0 after .5.
    assert [turn.rating for turn in collected.turns] == [None, 0.0, 0.5, None, 0.0]
    assert [turn.episode_return for turn in collected.turns] == [0.0, 0.0, 0.5, None, 0.5]
    assert [turn.solved for turn in collected.turns] == [False, False, False, False, True]


def test_an_arm_of_the_evaluation_begins_with_the_shared_first_trial(store: Store) -> None:
    trained = story(store, EVAL)
    assert [turn.key.arm for turn in trained.turns] == ["eval/trial 0", EVAL, EVAL]
    assert trained.columns == 3
    assert list(story_arms(store)) == [COLLECT, EVAL]
    arms = ["eval/a/trial 0", "eval/a/trained", "eval/b/trained", "eval/trial 0", COLLECT]
    assert [shared_trial(store, arm, arms) for arm in arms] == [None, "eval/a/trial 0", "eval/trial 0", None, None]


def test_the_memory_holds_as_many_pieces_of_advice_as_the_conditions_say(store: Store) -> None:
    assert [turn.memory for turn in story(store, COLLECT).chain] == [
        (),
        ("Look for a key.",),
        ("Look for a key.", "look for  a KEY"),
    ]
    assert story(store, EVAL).turns[-1].memory == ("Pull it.",)


def test_the_first_difference_is_the_first_other_action_or_observation() -> None:
    wait, knock = Step(action="wait", observation="."), Step(action="knock", observation=".")
    answered = Step(action="wait", observation="Yes?")
    assert first_difference((wait, knock), (wait, wait)) == 1
    assert first_difference((wait,), (answered,)) == 0
    assert first_difference((wait,), (wait.model_copy(update={"thought": "Hm."}),)) is None
    assert first_difference((wait,), (wait, knock)) == 1
    assert first_difference((wait, knock), (wait,)) == 1
    assert first_difference((), ()) is None


def test_the_first_difference_of_a_turn_is_to_the_attempt_before(store: Store) -> None:
    assert [turn.differs_at for turn in story(store, COLLECT).turns] == [None, None, 1, None, 0]


def test_flags_say_what_is_wrong_with_advice(store: Store) -> None:
    assert [turn.flags for turn in story(store, COLLECT).turns] == [
        (),
        ("truncated", "same steps"),
        (),
        ("truncated", "copy"),
        ("repeated plan",),
    ]


def test_a_leak_is_what_the_environment_says(store: Store) -> None:
    told = list[tuple[str, int]]()

    def leaks(advice: str, attempts: object) -> bool:
        assert isinstance(attempts, list)
        told.append((advice, len(attempts)))
        return "key" in advice

    collected = read_story(store, COLLECT, "door-1", leaks)
    assert collected is not None
    assert [turn.place for turn in collected.turns if "leak" in turn.flags] == ["1.1"]
    assert told[-1] == ("look for  a KEY", 2)


def test_a_task_without_facts_has_no_story(store: Store) -> None:
    assert read_story(store, COLLECT, "door-9") is None
    assert read_story(store, "eval/nobody", "door-1") is None


def test_the_list_has_a_line_for_each_task_of_an_arm(store: Store) -> None:
    assert list(story_lines(store, COLLECT)) == [StoryLine("door-1", 5, 0.0, 0.5, 2, 0.5, 0.0)]
    assert list(story_lines(store, EVAL)) == [
        StoryLine("door-1", 3, 0.0, 1.0, 2, 1.0, 0.0),
        StoryLine("door-2", 1, 1.0, 1.0, 0, None, None),
    ]
