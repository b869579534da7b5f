"""Tests of the sequential test, with wealths worked by hand and error rates over many sequences."""

import math

import numpy as np
import pytest

from eval.measure.betting import Floats, log_wealth, sequential_test

LEVEL = 0.05


def coin_differences(generator: np.random.Generator, first: float, second: float, tasks: int) -> Floats:
    """Return the differences of two retries that succeed with these probabilities."""
    return (generator.random(tasks) < first) * 1.0 - (generator.random(tasks) < second) * 1.0


def test_the_wealth_is_the_mean_of_the_bettors_wealths() -> None:
    # After a win and a loss, the bettor with the share b has (1 + b)(1 - b) = 1 - b².
    after_win = 1 + (0.05 + 0.1 + 0.2 + 0.4 + 0.8) / 5
    after_loss = 1 - (0.05**2 + 0.1**2 + 0.2**2 + 0.4**2 + 0.8**2) / 5
    assert np.exp(log_wealth(np.array([1.0, -1.0, 0.0]))) == pytest.approx([after_win, after_loss, after_loss])


def test_eight_wins_in_a_row_show_a_candidate_to_be_better_and_seven_do_not() -> None:
    # (1.05⁷ + 1.1⁷ + 1.2⁷ + 1.4⁷ + 1.8⁷) / 5 = 15.74 and the same with 8 = 26.58; the threshold is 1 / .05 = 20.
    assert np.exp(log_wealth(np.ones(8)))[-2:] == pytest.approx([15.74047, 26.57567])
    test = sequential_test([1.0] * 20, LEVEL)
    assert (test.conclusion, test.observations) == ("better", 8)
    assert sequential_test([1.0] * 7, LEVEL).conclusion == "open"


def test_the_test_is_symmetric_and_stops_at_the_first_crossing() -> None:
    worse = sequential_test([-1.0] * 20 + [1.0] * 500, LEVEL)
    better = sequential_test([1.0] * 20 + [-1.0] * 500, LEVEL)
    assert (worse.conclusion, better.conclusion) == ("worse", "better")
    assert worse.observations == better.observations == 8
    assert worse.log_wealth_worse == pytest.approx(better.log_wealth_better)


def test_equal_returns_are_no_evidence() -> None:
    assert sequential_test([0.0] * 1000, LEVEL) == ("open", 1000, 0.0, 0.0)
    assert sequential_test([], LEVEL) == ("open", 0, 0.0, 0.0)


def test_a_very_long_sequence_does_not_overflow() -> None:
    logs = log_wealth(np.ones(5000))
    assert np.isfinite(logs).all()
    assert logs[-1] == pytest.approx(5000 * math.log(1.8) - math.log(5))


@pytest.mark.parametrize("difference", [1.5, -1.01, math.nan, math.inf])
def test_a_difference_that_is_out_of_bounds_is_refused(difference: float) -> None:
    with pytest.raises(ValueError, match="between -1 and 1"):
        sequential_test([0.0, difference], LEVEL)


def test_false_conclusions_stay_within_the_level_although_every_task_is_looked_at() -> None:
    generator = np.random.default_rng(0)
    conclusions = [sequential_test(coin_differences(generator, 0.5, 0.5, 500), LEVEL).conclusion for _ in range(1000)]
    # Each of the two wrong conclusions has at most .05: 50 of 1,000, with three standard deviations of 7.
    assert conclusions.count("better") <= 50 + 21
    assert conclusions.count("worse") <= 50 + 21
    assert conclusions.count("open") < 1000, "a test without any error would have no power either"


def test_a_harmful_candidate_is_recognised_and_never_called_better() -> None:
    generator = np.random.default_rng(1)
    tests = [sequential_test(coin_differences(generator, 0.0, 0.6, 500), LEVEL) for _ in range(200)]
    assert {test.conclusion for test in tests} == {"worse"}
