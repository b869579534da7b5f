"""Tests of the facts and of the numbers derived from them."""

import pytest
from pydantic import ValidationError

from retroformer.method.rating import Rating
from retroformer.method.records import (
    Ending,
    Memory,
    Message,
    Outcome,
    PreferencePair,
    Step,
    Task,
    Trajectory,
    Transition,
    Usage,
)
from tests.support.characters import CAPITAL, attempt_at


def rated(before: float, *after: float) -> Rating:
    return Rating(CAPITAL.id, 1, 0, 0, "Say Paris.", before, tuple(after))


def test_a_fact_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        CAPITAL.split = "test"  # type: ignore[misc]


def test_a_fact_has_no_unknown_fields() -> None:
    with pytest.raises(ValidationError, match="Extra inputs"):
        Task.model_validate({"id": "a", "environment": "riddles", "split": "train", "colour": "red"})


@pytest.mark.parametrize("reward", [1e308, -1e13, float("nan"), float("inf")])
def test_a_reward_whose_sum_no_number_holds_is_refused(reward: float) -> None:
    with pytest.raises(ValidationError, match="reward"):
        Step(action="", observation="", reward=reward)
    with pytest.raises(ValidationError, match="reward"):
        Transition(observation="", reward=reward)


def test_the_return_is_the_exact_sum_of_rewards() -> None:
    assert attempt_at(rewards=[0.1] * 10).episode_return == 1  # Added one by one, they make 0.9999999999999999.
    assert attempt_at(rewards=()).episode_return == 0


def test_termination_and_truncation_both_end_an_episode() -> None:
    assert Transition(observation="", terminated=True).over
    assert Transition(observation="", truncated=True).over
    assert not Transition(observation="").over


def test_an_attempt_that_could_not_begin_is_invalid_and_says_why() -> None:
    spoiled = Trajectory.invalid(CAPITAL, "The school is closed.")
    assert (spoiled.outcome, spoiled.ending) == (Outcome.INVALID, Ending.INFRASTRUCTURE)
    assert spoiled.cause == "The school is closed."


def test_memory_drops_the_oldest_reflections_beyond_its_capacity() -> None:
    memory = Memory()
    for text in ("one", "two", "three"):
        memory = memory.remember(text, capacity=2)
    assert memory.reflections == ("two", "three")


def test_memory_keeps_no_blank_reflection() -> None:
    memory = Memory(reflections=("one",))
    assert memory.remember(" \n", capacity=1) == memory


def test_remembering_makes_a_new_memory() -> None:
    before = Memory()
    assert before.remember("one", capacity=1).reflections == ("one",)
    assert before.reflections == ()


def test_usage_adds_up_field_by_field() -> None:
    total = Usage(calls=1, prompt_tokens=10, completion_tokens=2, dollars=0.25) + Usage(
        calls=2, prompt_tokens=5, completion_tokens=1, dollars=0.5
    )
    assert total == Usage(calls=3, prompt_tokens=15, completion_tokens=3, dollars=0.75)


def test_a_rating_is_the_gain_of_the_next_trial() -> None:
    assert rated(0.25, 1.0).rating == 0.75
    assert rated(1.0, 0.25).rating == -0.75


def test_a_rating_is_a_mean_over_repeats_with_its_standard_error() -> None:
    # Mean 0.5, deviations -0.5, 0, 0.5: variance 0.5 / 2, standard deviation 0.5, over the root of 3.
    reflection = rated(0.25, 0.0, 0.5, 1.0)
    assert reflection.rating == 0.25
    assert reflection.standard_error == pytest.approx(0.5 / 3**0.5)


def test_a_single_repeat_has_no_known_standard_error() -> None:
    assert rated(0.0, 1.0).standard_error == 0


def test_a_tie_cannot_even_be_written_as_a_pair() -> None:
    with pytest.raises(ValidationError, match="greater than 0"):
        PreferencePair(task_id="a", prompt=(Message(role="user", content="?"),), chosen="x", rejected="y", margin=0.0)


def test_an_attempt_survives_its_json() -> None:
    trajectory = attempt_at(rewards=(0.1, 0.7))
    assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory
