"""Places of wanted things in advice: the oracle's are noticed, advice from the failure alone is clean."""

from random import Random

import pytest

from retroformer.environments.alfworld import taskset
from retroformer.environments.alfworld.advice_writer import (
    DEMONSTRATED,
    MIXTURE,
    UNSEEN,
    advice_from_solution,
    advice_on_places,
    mixed_advice,
    next_places,
    useful_advice,
)
from retroformer.environments.alfworld.attempt_reader import view_of
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.alfworld.leak import PlaceLeak
from retroformer.errors import UnknownTask
from retroformer.method.records import Ending, Memory, Outcome, Step, Task, Trajectory
from tests.support.household import attempt, took, walked

WALKTHROUGH = ("go to shelf 2", "take mug 1 from shelf 2", "go to desk 1", "move mug 1 to desk 1")
BLIND = attempt(*walked("drawer 1", "drawer 2", drawer_1="pen 1"))
SIGHTED = attempt(*walked("shelf 2", shelf_2="mug 1"))


def given_away(advice: str, *attempts: Trajectory) -> str:
    return PlaceLeak(lambda task: WALKTHROUGH).given_away(advice, attempts or (BLIND,))


@pytest.mark.parametrize(
    "advice",
    [
        "The mug 1 is in shelf 2.",
        "Take the mug from shelf 2, then go to desk 1.",
        "I wasted steps on drawer 1. Go to shelf 2 and take the mug 1.",
        "Remember that shelf 2 holds the mug 1.",
    ],
)
def test_the_place_of_the_wanted_thing_is_noticed(advice: str) -> None:
    assert given_away(advice) == "mug 1 in shelf 2"


@pytest.mark.parametrize(
    "advice",
    [
        "Look in shelf 2.",
        "Check shelf 1-2 for the mug.",
        "The mug may be in shelf 2.",
        "The mug is probably on shelf 2, so go there.",
        "I should look for the mug in shelf 2.",
        "If the mug is in shelf 2, take it.",
        "The mug is on the shelves.",
        "The mug 1 is in drawer 3.",
        "The pen 1 is in drawer 1.",
        "Put the mug in desk 1.",
        "The mug is not in shelf 2.",
        "",
    ],
)
def test_guesses_wrong_places_and_other_things_are_no_leak(advice: str) -> None:
    assert given_away(advice) == ""


def test_a_place_that_any_attempt_had_seen_may_be_named() -> None:
    assert given_away("The mug 1 is in shelf 2.", SIGHTED) == ""
    assert given_away("The mug 1 is in shelf 2.", SIGHTED, BLIND) == ""
    assert given_away("The mug 1 is in shelf 2.", attempt(*walked("shelf 2"))) == "mug 1 in shelf 2"
    assert given_away("Take mug 1 from shelf 2.", attempt(*SIGHTED.steps, took("mug 1", "shelf 2"))) == ""


def test_a_game_that_does_not_exist_is_an_error_only_if_a_place_was_stated() -> None:
    def missing(task: Task) -> tuple[str, ...]:
        raise UnknownTask("No such game.")

    check = PlaceLeak(missing)
    assert check.given_away("Look in shelf 2.", (BLIND,)) == ""
    with pytest.raises(UnknownTask):
        check.given_away("The mug 1 is in shelf 2.", (BLIND,))


@pytest.fixture(scope="module")
def failures() -> list[tuple[Trajectory, tuple[str, ...]]]:
    """Return a walk to four places in each of 25 generated games, with the game's walkthrough."""
    pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")
    games = taskset(Alfworld.model_validate({"name": "alfworld", "source": "generated"}))
    environment, failures = games.environment(), []
    for task in games.tasks()[:25]:
        seen, steps = environment.reset(task), list[Step]()
        opening, walks = seen.observation, [choice for choice in seen.choices if choice.startswith("go to ")]
        for action in Random(task.id).sample(walks, 4):
            steps.append(Step(action=action, observation=environment.step(action).observation))
        failure = Trajectory(
            task=task, opening=opening, steps=tuple(steps), outcome=Outcome.FAILURE, ending=Ending.STEP_LIMIT
        )
        failures.append((failure, games.walkthrough(task)))
    return failures


def test_twenty_of_twenty_pieces_of_oracle_advice_are_noticed_in_any_words(
    failures: list[tuple[Trajectory, tuple[str, ...]]],
) -> None:
    leaks = []
    for number, (failure, walkthrough) in enumerate(failures[:20]):
        blind = failure.model_copy(update={"steps": ()})
        advice = advice_from_solution(blind, walkthrough, (DEMONSTRATED, UNSEEN)[number % 2], Random(number))
        leaks.append(PlaceLeak(lambda task, actions=walkthrough: actions).given_away(advice, (blind,)))
    assert len(leaks) == 20
    assert all(leaks)


def test_no_piece_of_two_hundred_that_were_written_from_the_failure_alone_is_named(
    failures: list[tuple[Trajectory, tuple[str, ...]]],
) -> None:
    pieces, leaks = 0, list[str]()
    for number, (failure, walkthrough) in enumerate(failures):
        texts = [useful_advice(view_of(failure), Random(number)), useful_advice(view_of(failure), Random(-number - 1))]
        texts += [mixed_advice(view_of(failure), kind, Random(number)) for kind in MIXTURE]
        view = view_of(failure)
        for wording in (DEMONSTRATED, UNSEEN):
            texts.append(advice_on_places(view, next_places(view, Memory())[:6], wording, Random(number)))
        for text in texts:
            pieces += 1
            check = PlaceLeak(lambda task, actions=walkthrough: actions)
            leaks += filter(None, [check.given_away(text, (failure,))])
    assert pieces == 200
    assert leaks == []
