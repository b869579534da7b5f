"""Tests of ratings, worked by hand on a store with a few facts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.method.rating import Rerating, preference_pairs, ratings
from retroformer.method.records import Key, Outcome, Usage
from retroformer.run.store import Store
from tests.support.characters import CAPITAL, advice, attempt_at
from tests.support.facts import add_invalid, add_trajectory


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")
    yield opened
    opened.close()


def key(trial: int, candidate: int = 0, repeat: int = 0) -> Key:
    return Key(arm="collect", task_id=CAPITAL.id, trial=trial, candidate=candidate, repeat=repeat)


def test_a_reflection_is_rated_by_the_trials_around_it(store: Store) -> None:
    add_trajectory(store, key(0), attempt_at(rewards=(0.25,)))
    store.add_reflection(key(1, 0), 0, advice("Say Paris."))
    store.add_reflection(key(1, 1), 0, advice("Say Lyon."))
    add_trajectory(store, key(1, 0), attempt_at(rewards=(1.0,), outcome=Outcome.SUCCESS))
    add_trajectory(store, key(1, 1), attempt_at(rewards=(0.0,)))
    assert [(rated.reflection.text, rated.rating) for rated in ratings(store, "collect", records=True)] == [
        ("Say Paris.", 0.75),
        ("Say Lyon.", -0.25),
    ]


def test_the_second_retry_is_compared_with_the_accepted_first_one(store: Store) -> None:
    add_trajectory(store, key(0), attempt_at(rewards=(0.0,)))
    add_trajectory(store, key(1, 0), attempt_at(rewards=(0.0,)))
    add_trajectory(store, key(1, 1), attempt_at(rewards=(0.5,)))
    store.add_reflection(key(2, 0), 1, advice("Go on like this."))
    add_trajectory(store, key(2, 0), attempt_at(rewards=(1.0,), outcome=Outcome.SUCCESS))
    (rated,) = ratings(store, "collect", records=True)
    assert (rated.return_before, rated.rating) == (0.5, 0.5)


def test_a_reflection_whose_retry_was_invalid_is_not_rated(store: Store) -> None:
    add_trajectory(store, key(0), attempt_at())
    store.add_reflection(key(1), 0, advice("Say Paris."))
    add_invalid(store, key(1), "The school is closed.", Usage())
    assert list(ratings(store, "collect", records=True)) == []


def test_a_reflection_on_a_trajectory_of_another_arm_is_not_rated(store: Store) -> None:
    add_trajectory(store, key(0).model_copy(update={"arm": "eval/trial 0"}), attempt_at())
    store.add_reflection(key(1), 0, advice("Say Paris."))
    add_trajectory(store, key(1), attempt_at())
    assert list(ratings(store, "collect", records=True)) == []


def test_a_reflection_is_rated_against_retries_without_advice_if_there_are_any(store: Store) -> None:
    add_trajectory(store, key(0), attempt_at(rewards=(0.0,)))
    for candidate, (text, returns) in enumerate((("Say Paris.", (1.0, 1.0)), ("Hm.", (1.0, 0.0)), ("", (1.0, 0.0)))):
        store.add_reflection(key(1, candidate), 0, advice(text))
        for repeat, reward in enumerate(returns):
            add_trajectory(store, key(1, candidate, repeat), attempt_at(rewards=(reward,)))
    good, idle, blank = ratings(store, "collect", records=True)
    assert (good.return_before, good.rating, idle.rating) == (0.5, 0.5, 0.0), "luck is not taught"
    assert (blank.return_before, blank.rating, blank.error_before) == (0.0, 0.5, 0.0), (
        "no advice is no baseline of itself"
    )
    # Both halves of a coin: a standard error of 1 / sqrt(2) / sqrt(2) of the retries without advice.
    assert good.standard_error == pytest.approx(0.5)
    assert idle.standard_error == pytest.approx(0.5**0.5)
    assert [pair.chosen for pair in preference_pairs(store, "collect")] == []


def test_repeats_of_a_retry_are_one_rating(store: Store) -> None:
    add_trajectory(store, key(0), attempt_at())
    store.add_reflection(key(1), 0, advice("Say Paris."))
    for repeat, reward in enumerate((1.0, 0.0, 0.5)):
        add_trajectory(store, key(1, repeat=repeat), attempt_at(rewards=(reward,)))
    (rated,) = ratings(store, "collect", records=True)
    assert (rated.returns_after, rated.rating) == ((1.0, 0.0, 0.5), 0.5)


def test_stored_attempts_are_rated_anew_by_another_return(store: Store) -> None:
    add_trajectory(store, key(0), attempt_at(rewards=(0.5,)))
    store.add_reflection(key(1, 0), 0, advice("Say Paris."))
    store.add_reflection(key(1, 1), 0, advice("Say Lyon."))
    add_trajectory(store, key(1, 0), attempt_at(rewards=(0.25,), outcome=Outcome.SUCCESS))
    add_trajectory(store, key(1, 1), attempt_at(rewards=(0.75,)))
    by_success = Rerating(lambda attempt: float(attempt.outcome is Outcome.SUCCESS))
    solved = list(ratings(store, "collect", records=True, anew=by_success))
    assert [(rated.text, rated.return_before, rated.rating) for rated in solved] == [
        ("Say Paris.", 0.0, 1.0),
        ("Say Lyon.", 0.0, 0.0),
    ]
    (pair,) = preference_pairs(store, "collect", by_success)
    assert (pair.chosen, pair.rejected, pair.margin) == ("Say Paris.", "Say Lyon.", 1.0)
    (pair,) = preference_pairs(store, "collect")
    assert (pair.chosen, pair.rejected, pair.margin) == ("Say Lyon.", "Say Paris.", 0.5)


def test_rating_anew_by_the_stored_return_gives_the_stored_ratings(store: Store) -> None:
    """More tasks than are read at once, with repeats, a second trial after either candidate, and lost retries."""
    for number in range(230):

        def at(trial: int, candidate: int = 0, repeat: int = 0, task: str = f"task {number}") -> Key:
            return Key(arm="collect", task_id=task, trial=trial, candidate=candidate, repeat=repeat)

        add_trajectory(store, at(0), attempt_at(rewards=(number / 230,)))
        for candidate in (0, 1):
            store.add_reflection(at(1, candidate), 0, advice(f"{number}, {candidate}"))
            for repeat in range(1 + number % 3):
                if number % 7 or candidate:
                    add_trajectory(store, at(1, candidate, repeat), attempt_at(rewards=(repeat / 4 - candidate,)))
        store.add_reflection(at(2), number % 2, advice(f"{number} again"))
        add_trajectory(store, at(2), attempt_at(rewards=(1.0,)))
    as_stored = list(ratings(store, "collect", records=True))
    # 33 tasks lost the retries of candidate 0; 17 of them are even, so the failure before their second trial is lost.
    assert len(as_stored) == 3 * 230 - 33 - 17
    assert (
        list(ratings(store, "collect", records=True, anew=Rerating(lambda attempt: attempt.episode_return)))
        == as_stored
    )
