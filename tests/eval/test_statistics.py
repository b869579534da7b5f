"""Intervals and paired tests, with numbers worked by hand."""

import numpy as np
import pytest

from eval.statistics import Floats, Interval, bootstrap, mcnemar


def outcomes(text: str) -> Floats:
    """`1101` as three solved tasks and one failed."""
    return np.array([float(digit) for digit in text])


def test_the_bootstrap_of_a_constant_has_no_width() -> None:
    assert bootstrap(outcomes("1111"), seed=0) == Interval(1.0, 1.0, 1.0)
    assert bootstrap(np.full(50, -0.25), seed=3) == Interval(-0.25, -0.25, -0.25)


def test_the_interval_of_a_share_is_close_to_the_binomial_one() -> None:
    # 60 of 100: standard error 0.049, so about 0.6 +- 0.096.
    interval = bootstrap(np.repeat([1.0, 0.0], (60, 40)), seed=0)
    assert interval.mean == 0.6
    assert interval.low == pytest.approx(0.504, abs=0.015)
    assert interval.high == pytest.approx(0.696, abs=0.015)


def test_four_times_the_tasks_halve_the_interval() -> None:
    few, many = (bootstrap(np.tile([1.0, 0.0], tasks // 2), seed=0) for tasks in (100, 400))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(2, rel=0.1)


def test_the_same_seed_draws_the_same_interval_and_another_does_not_move_the_mean() -> None:
    values = np.random.default_rng(7).normal(size=37)
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1)
    assert bootstrap(values, seed=1) != bootstrap(values, seed=2)
    assert bootstrap(values, seed=1).mean == bootstrap(values, seed=2).mean == values.mean()


def test_an_interval_of_a_single_task_is_that_task() -> None:
    assert bootstrap(outcomes("1"), seed=0) == Interval(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("interval", "excludes"),
    [
        (Interval(0.2, 0.1, 0.3), True),
        (Interval(-0.2, -0.3, -0.1), True),
        (Interval(0.2, -0.1, 0.5), False),
        (Interval(0.2, 0.0, 0.4), False),
        (Interval(0.0, 0.0, 0.0), False),
    ],
)
def test_an_interval_that_touches_zero_does_not_exclude_it(interval: Interval, excludes: bool) -> None:
    assert interval.excludes_zero is excludes


def test_an_interval_is_written_as_mean_and_brackets() -> None:
    assert str(Interval(0.25, 0.1, 0.4)) == "0.250 [0.100, 0.400]"


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ("1100", "1100", 1.0),  # No task tells them apart.
        ("1000", "0000", 1.0),  # 1 to 0: 2 * (1 / 2), at most 1.
        ("1100", "0011", 1.0),  # 2 to 2.
        ("111110", "000000", 0.0625),  # 5 to 0: 2 * (1 / 32).
        ("1111110", "0000001", 0.125),  # 6 to 1: 2 * (1 + 7) / 128.
        ("1111111100", "0000000011", 0.109375),  # 8 to 2: 2 * (1 + 10 + 45) / 1024.
    ],
)
def test_mcnemars_exact_p_is_a_doubled_binomial_tail(first: str, second: str, p: float) -> None:
    assert mcnemar(outcomes(first), outcomes(second)) == p


def test_mcnemars_p_does_not_mind_the_order_nor_the_tasks_that_both_solved() -> None:
    first, second = outcomes("1111110"), outcomes("0000001")
    both = np.ones(100)
    assert mcnemar(first, second) == mcnemar(second, first)
    assert mcnemar(np.append(first, both), np.append(second, both)) == mcnemar(first, second)


def test_mcnemars_p_of_very_many_tasks_is_still_a_number() -> None:
    assert mcnemar(np.ones(3000), np.zeros(3000)) == pytest.approx(0.0, abs=1e-300)
