"""Tests of preferences between two reflections, worked by hand."""

from dataclasses import replace

from retroformer.method.rating import Rating, preferences
from tests.support.characters import CAPITAL


def preferred(rated: list[Rating]) -> list[tuple[str, str, float]]:
    """Return the better text, the worse one, and the difference of their ratings."""
    return [(better.text, worse.text, better.rating - worse.rating) for better, worse in preferences(rated)]


def reflection_at(candidate: int, *after: float, trial: int = 1, before: float = 0.0, text: str = "") -> Rating:
    return Rating(CAPITAL.id, trial, candidate, 0, text or f"advice {candidate}", before, tuple(after))


def test_the_better_rated_of_two_is_chosen() -> None:
    assert preferred([reflection_at(0, 0.25), reflection_at(1, 1.0)]) == [("advice 1", "advice 0", 0.75)]


def test_three_ratings_with_one_tie_make_two_pairs() -> None:
    pairs = preferred([reflection_at(0, 1.0), reflection_at(1, 0.0), reflection_at(2, 0.0)])
    assert [pair[:2] for pair in pairs] == [("advice 0", "advice 1"), ("advice 0", "advice 2")]


def test_reflections_on_different_failures_are_never_compared() -> None:
    for other in (reflection_at(1, 0.0, trial=2), replace(reflection_at(1, 0.0), previous_candidate=1)):
        assert preferred([reflection_at(0, 1.0), other]) == []


def test_a_difference_within_its_standard_error_is_no_preference() -> None:
    # Ratings 0.5 and 0.25; standard errors 0.5 / 1 and 0.25 / 1, together the root of 0.3125 = 0.56 > 0.25.
    assert preferred([reflection_at(0, 0.0, 1.0), reflection_at(1, 0.0, 0.5)]) == []


def test_standard_errors_of_independent_retries_add_up_by_their_squares() -> None:
    # Ratings 0.3 and 0.9 with standard errors 0.3 and 0.4: together 0.5, which is less than the difference of 0.6.
    assert [pair[:2] for pair in preferred([reflection_at(0, 0.0, 0.6), reflection_at(1, 0.5, 1.3)])] == [
        ("advice 1", "advice 0")
    ]


def test_equal_and_blank_texts_are_never_a_pair() -> None:
    for better, worse in (("Say Paris.", "Say Paris."), ("Say Paris.", " "), (" ", "Say Paris.")):
        assert preferred([reflection_at(0, 1.0, text=better), reflection_at(1, 0.0, text=worse)]) == []
