"""What a reflection was worth, worked by hand on a store with a few facts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.rating import preferences, rated_reflections
from retroformer.records import Key, Outcome, RatedReflection, Usage
from retroformer.store import Store
from tests.support.characters import CAPITAL, advice, attempt_at


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")
    yield opened
    opened.close()


def preferred(rated: list[RatedReflection]) -> list[tuple[str, str, float]]:
    """The better text, the worse one, and the difference of their ratings."""
    return [(better.text, worse.text, better.rating - worse.rating) for better, worse in preferences(rated)]


def key(trial: int, candidate: int = 0, repeat: int = 0) -> Key:
    return Key(arm="collect", task_id=CAPITAL.id, trial=trial, candidate=candidate, repeat=repeat)


def one(candidate: int, *after: float, trial: int = 1, before: float = 0.0, text: str = "") -> RatedReflection:
    return RatedReflection(
        key=key(trial, candidate),
        reflection=advice(text or f"advice {candidate}"),
        return_before=before,
        returns_after=tuple(after),
    )


def test_a_reflection_is_rated_by_the_trials_around_it(store: Store) -> None:
    store.add_trajectory(key(0), attempt_at(rewards=(0.25,)))
    store.add_reflection(key(1, 0), 0, advice("Say Paris."))
    store.add_reflection(key(1, 1), 0, advice("Say Lyon."))
    store.add_trajectory(key(1, 0), attempt_at(rewards=(1.0,), outcome=Outcome.SUCCESS))
    store.add_trajectory(key(1, 1), attempt_at(rewards=(0.0,)))
    assert [(rated.reflection.text, rated.rating) for rated in rated_reflections(store, "collect")] == [
        ("Say Paris.", 0.75),
        ("Say Lyon.", -0.25),
    ]


def test_the_second_retry_is_compared_with_the_accepted_first_one(store: Store) -> None:
    store.add_trajectory(key(0), attempt_at(rewards=(0.0,)))
    store.add_trajectory(key(1, 0), attempt_at(rewards=(0.0,)))
    store.add_trajectory(key(1, 1), attempt_at(rewards=(0.5,)))
    store.add_reflection(key(2, 0), 1, advice("Go on like this."))
    store.add_trajectory(key(2, 0), attempt_at(rewards=(1.0,), outcome=Outcome.SUCCESS))
    (rated,) = rated_reflections(store, "collect")
    assert (rated.return_before, rated.rating) == (0.5, 0.5)


def test_a_reflection_whose_retry_was_invalid_is_not_rated(store: Store) -> None:
    store.add_trajectory(key(0), attempt_at())
    store.add_reflection(key(1), 0, advice("Say Paris."))
    store.add_invalid(key(1), "The school is closed.", Usage())
    assert list(rated_reflections(store, "collect")) == []


def test_a_reflection_on_a_trajectory_of_another_arm_is_not_rated(store: Store) -> None:
    store.add_trajectory(key(0).model_copy(update={"arm": "eval/trial 0"}), attempt_at())
    store.add_reflection(key(1), 0, advice("Say Paris."))
    store.add_trajectory(key(1), attempt_at())
    assert list(rated_reflections(store, "collect")) == []


def test_repeats_of_a_retry_are_one_rating(store: Store) -> None:
    store.add_trajectory(key(0), attempt_at())
    store.add_reflection(key(1), 0, advice("Say Paris."))
    for repeat, reward in enumerate((1.0, 0.0, 0.5)):
        store.add_trajectory(key(1, repeat=repeat), attempt_at(rewards=(reward,)))
    (rated,) = rated_reflections(store, "collect")
    assert (rated.returns_after, rated.rating) == ((1.0, 0.0, 0.5), 0.5)


def test_the_better_rated_of_two_is_chosen() -> None:
    assert preferred([one(0, 0.25), one(1, 1.0)]) == [("advice 1", "advice 0", 0.75)]


def test_ties_never_become_pairs() -> None:
    assert preferred([one(0, 1.0), one(1, 1.0), one(2, 1.0)]) == []


def test_three_ratings_with_one_tie_make_two_pairs() -> None:
    pairs = preferred([one(0, 1.0), one(1, 0.0), one(2, 0.0)])
    assert [pair[:2] for pair in pairs] == [("advice 0", "advice 1"), ("advice 0", "advice 2")]


def test_reflections_on_different_trajectories_are_never_compared() -> None:
    assert preferred([one(0, 1.0, trial=1), one(0, 0.0, trial=2)]) == []


def test_a_difference_within_its_standard_error_is_no_preference() -> None:
    # Ratings 0.5 and 0.25; standard errors 0.5 / 1 and 0.25 / 1, together the root of 0.3125 = 0.56 > 0.25.
    assert preferred([one(0, 0.0, 1.0), one(1, 0.0, 0.5)]) == []


def test_a_difference_beyond_its_standard_error_is_a_preference() -> None:
    # Ratings 0.875 and 0.125, each with standard error 0.125: together 0.18 < 0.75.
    assert preferred([one(0, 0.0, 0.25), one(1, 0.75, 1.0)]) == [("advice 1", "advice 0", 0.75)]


def test_the_same_words_are_never_a_pair_with_themselves() -> None:
    assert preferred([one(0, 1.0, text="Say Paris."), one(1, 0.0, text="Say Paris.")]) == []
