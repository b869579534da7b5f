"""Ratings by success within two retries, worked by hand on chains of attempts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.method.rating import Rerating, count_ratings, preference_pairs, ratings
from retroformer.method.records import Key, Outcome, Trajectory
from retroformer.run.store import Store
from tests.support.characters import CAPITAL, advice, attempt_at
from tests.support.facts import add_trajectory

LOST, WON = Outcome.FAILURE, Outcome.SUCCESS


def success(attempt: Trajectory) -> float:
    return float(attempt.outcome is WON)


BY_NEXT, BY_SECOND = Rerating(success), Rerating(success, second_retry=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")
    yield opened
    opened.close()


def play(store: Store, trial: int, candidate: int = 0, outcome: Outcome = LOST, repeat: int = 0) -> None:
    """Store an attempt, whose own return is always 0.5."""
    key = Key(arm="collect", task_id=CAPITAL.id, trial=trial, candidate=candidate, repeat=repeat)
    add_trajectory(store, key, attempt_at(rewards=(0.5,), outcome=outcome))


def advise(store: Store, trial: int, candidate: int = 0, after: int = 0) -> None:
    """Store the advice for a trial, written on this candidate of the trial before."""
    key = Key(arm="collect", task_id=CAPITAL.id, trial=trial, candidate=candidate)
    store.add_reflection(key, after, advice(f"advice {trial}.{candidate}"))


def rated(store: Store, anew: Rerating = BY_SECOND) -> dict[str, float]:
    return {rating.text: rating.rating for rating in ratings(store, "collect", records=True, anew=anew)}


def counted(store: Store, anew: Rerating | None) -> str:
    return count_ratings([ratings(store, "collect", anew=anew)])


def test_a_reflection_is_credited_with_a_success_of_the_second_retry(store: Store) -> None:
    play(store, 0)
    for trial, outcome in ((1, LOST), (2, LOST), (3, WON)):
        advise(store, trial)
        play(store, trial, outcome=outcome)
    assert rated(store) == {"advice 1.0": 0.0, "advice 2.0": 1.0, "advice 3.0": 1.0}
    assert rated(store, BY_NEXT) == {"advice 1.0": 0.0, "advice 2.0": 0.0, "advice 3.0": 1.0}


def test_the_margin_of_a_pair_is_the_difference_of_the_ratings(store: Store) -> None:
    play(store, 0)
    advise(store, 1)
    play(store, 1, outcome=WON)
    advise(store, 1, 1)
    for repeat, outcome in enumerate((WON, LOST, LOST, LOST)):
        play(store, 1, 1, outcome, repeat)
    assert [pair.margin for pair in preference_pairs(store, "collect", BY_NEXT)] == [0.75]


def test_an_imported_chain_may_go_on_without_new_advice(store: Store) -> None:
    play(store, 0)
    advise(store, 1)
    play(store, 1)
    play(store, 2, outcome=WON)
    assert rated(store) == {"advice 1.0": 1.0}
    assert rated(store, BY_NEXT) == {"advice 1.0": 0.0}


def test_the_second_retry_counts_as_the_mean_over_its_candidates(store: Store) -> None:
    play(store, 0)
    advise(store, 1)
    play(store, 1)
    for candidate, outcome in enumerate((WON, LOST, LOST, LOST)):
        advise(store, 2, candidate)
        play(store, 2, candidate, outcome)
    assert rated(store)["advice 1.0"] == 0.25
    assert [pair.rejected for pair in preference_pairs(store, "collect", BY_SECOND)] == [
        f"advice 2.{candidate}" for candidate in (1, 2, 3)
    ]
    assert counted(store, BY_SECOND) == "5 rated: 2 positive, 0 negative, 3 zero; 3 pairs"


def test_a_failure_that_had_one_retry_is_not_compared_with_one_that_had_two(store: Store) -> None:
    play(store, 0)
    for candidate in (0, 1):
        advise(store, 1, candidate)
        play(store, 1, candidate)
    advise(store, 2, after=1)
    play(store, 2, outcome=WON)
    # The chain went on from candidate 1 only: what a second retry after candidate 0 would have brought is unknown.
    assert rated(store) == {"advice 1.1": 1.0, "advice 2.0": 1.0}
    assert list(preference_pairs(store, "collect", BY_SECOND)) == []


def test_a_success_at_once_is_preferred_to_a_failure_that_ended_the_chain(store: Store) -> None:
    play(store, 0)
    for candidate, outcome in enumerate((LOST, WON)):
        advise(store, 1, candidate)
        play(store, 1, candidate, outcome)
    assert rated(store) == {"advice 1.0": 0.0, "advice 1.1": 1.0}
    (pair,) = preference_pairs(store, "collect", BY_SECOND)
    assert (pair.chosen, pair.rejected, pair.margin) == ("advice 1.1", "advice 1.0", 1.0)


def test_repeats_that_failed_get_the_return_of_the_second_retry(store: Store) -> None:
    play(store, 0)
    advise(store, 1)
    for repeat, outcome in enumerate((LOST, WON, LOST)):
        play(store, 1, outcome=outcome, repeat=repeat)
    advise(store, 2)
    for repeat, outcome in enumerate((WON, LOST)):
        play(store, 2, outcome=outcome, repeat=repeat)
    (first, second) = ratings(store, "collect", records=True, anew=BY_SECOND)
    assert first.returns_after == (0.5, 1.0, 0.5)
    assert second.returns_after == (1.0, 0.0)


def test_a_second_retry_that_is_not_stored_yet_leaves_the_reflection_unrated(store: Store) -> None:
    play(store, 0)
    advise(store, 1)
    play(store, 1)
    assert rated(store) == {"advice 1.0": 0.0}, "the last trial stands"
    advise(store, 2)
    assert rated(store) == {}
    play(store, 2, outcome=WON)
    assert rated(store) == {"advice 1.0": 1.0, "advice 2.0": 1.0}


def test_as_in_evaluation_the_last_attempt_within_the_two_retries_counts(store: Store) -> None:
    """An evaluator that wrongly doubts a success makes the agent go on and lose it."""
    play(store, 0)
    advise(store, 1)
    key = Key(arm="collect", task_id=CAPITAL.id, trial=1)
    add_trajectory(store, key, attempt_at(outcome=WON).model_copy(update={"judged": False}))
    advise(store, 2)
    play(store, 2)
    assert rated(store) == {"advice 1.0": 0.0, "advice 2.0": -1.0}


def test_stored_facts_stay_and_both_counts_can_be_shown(store: Store) -> None:
    play(store, 0)
    for trial, outcome in ((1, LOST), (2, WON)):
        advise(store, trial)
        play(store, trial, outcome=outcome)
    before = dict(store.stream_trajectories("collect"))
    assert counted(store, None) == "2 rated: 0 positive, 0 negative, 2 zero; 0 pairs"
    assert counted(store, BY_SECOND) == "2 rated: 2 positive, 0 negative, 0 zero; 0 pairs"
    assert dict(store.stream_trajectories("collect")) == before
