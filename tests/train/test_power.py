"""Exact tests of held-out pairs and their power, worked by hand."""

import math
from fractions import Fraction

import pytest

from train.power import ChanceTest, at_least, fewest_correct, fewest_pairs, pairs_needed, power


def exactly(count: int, trials: int, share: Fraction) -> float:
    """Return the same probability by exact fractions."""
    chances = (math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count, trials + 1))
    return float(sum(chances, Fraction()))


def test_the_tail_is_that_of_the_binomial_distribution() -> None:
    # 8, 9 or 10 heads in 10 tosses: (45 + 10 + 1) / 1024.
    assert at_least(8, 10) == pytest.approx(56 / 1024, rel=1e-12)
    assert (at_least(0, 3), at_least(4, 3), at_least(0, 0)) == (1.0, 0.0, 1.0)
    # Two or three successes with probability 3/4: 3 * 9/64 + 27/64.
    assert at_least(2, 3, 0.75) == pytest.approx(54 / 64, rel=1e-12)
    for trials in (17, 54, 500):
        for count in (0, trials // 2, trials - 3):
            assert at_least(count, trials, 0.65) == pytest.approx(exactly(count, trials, Fraction(65, 100)), rel=1e-9)


def test_five_pairs_are_the_fewest_that_can_reject_chance() -> None:
    # 1/16 = .0625 is above the level, 1/32 = .03125 below.
    assert fewest_pairs() == 5
    assert [fewest_correct(pairs) for pairs in (0, 4, 5, 8, 10)] == [None, None, 5, 7, 9]
    assert ChanceTest(5, 5).rejects_chance
    assert not ChanceTest(4, 4).rejects_chance
    # 9 of 10: 11/1024 = .0107; 8 of 10: 56/1024 = .0547.
    assert (ChanceTest(9, 10).rejects_chance, ChanceTest(8, 10).rejects_chance) == (True, False)


def test_the_smallest_significant_count_rejects_and_the_one_below_does_not() -> None:
    for pairs in range(5, 130):
        fewest = fewest_correct(pairs)
        assert fewest is not None
        assert at_least(fewest, pairs) <= 0.05 < at_least(fewest - 1, pairs)


def test_the_power_is_the_chance_of_a_significant_count() -> None:
    assert power(4) == 0.0
    # Five of five at .65: .65^5. With 10 pairs nine or ten: 10 * .65^9 * .35 + .65^10.
    assert power(5) == pytest.approx(0.65**5)
    assert power(10) == pytest.approx(10 * 0.65**9 * 0.35 + 0.65**10)
    assert power(54) == pytest.approx(exactly(34, 54, Fraction(65, 100)))
    assert power(20, 0.5) <= 0.05, "at an accuracy of one half, the power is the level at most"


def test_from_the_needed_number_of_pairs_on_the_power_stays_at_80_percent() -> None:
    needed = pairs_needed()
    # The normal approximation: ((1.645 * .5 + .842 * .477) / .15)^2 = 66.7.
    assert 67 <= needed <= 80
    assert power(needed - 1) < 0.8
    assert min(power(pairs) for pairs in range(needed, 400)) >= 0.8


def test_the_limits_of_a_test_are_a_part_of_a_sentence() -> None:
    assert ChanceTest(7, 13).limits == (
        "the exact test against chance gives p = 0.5; with 13 pairs it recognises a true accuracy of 65% in 28% of "
        "cases, and 80% would need 76 pairs"
    )
