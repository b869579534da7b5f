"""Intervals and paired tests, with numbers worked by hand."""

from math import comb, gamma, pi, sqrt
from statistics import stdev

import numpy as np
import pytest

from eval.measure.results import Floats
from eval.measure.statistics import Comparison, MeanInterval, bootstrap, mcnemar, over_seeds, sign_flip


def outcomes(text: str) -> Floats:
    """Convert `1101` to three solved tasks and one failed."""
    return np.array([float(digit) for digit in text])


def test_the_bootstrap_interval_of_a_constant_has_zero_width() -> None:
    assert bootstrap(outcomes("1111")) == MeanInterval(1.0, 1.0, 1.0)
    assert bootstrap(np.full(50, -0.25)) == MeanInterval(-0.25, -0.25, -0.25)


def test_the_interval_of_a_share_is_close_to_the_binomial_one() -> None:
    # 60 of 100: standard error 0.049, so about 0.6 +- 0.096.
    interval = bootstrap(np.repeat([1.0, 0.0], (60, 40)))
    assert interval.mean == 0.6
    assert interval.low == pytest.approx(0.504, abs=0.015)
    assert interval.high == pytest.approx(0.696, abs=0.015)


def test_four_times_the_tasks_halve_the_interval() -> None:
    few, many = (bootstrap(np.tile([1.0, 0.0], tasks // 2)) for tasks in (100, 400))
    assert (few.high - few.low) / (many.high - many.low) == pytest.approx(2, rel=0.1)


def test_the_order_of_the_tasks_does_not_move_an_interval() -> None:
    values_ST = np.random.default_rng(7).integers(0, 2, (3, 37)).astype(float)
    assert bootstrap(values_ST) == bootstrap(values_ST[:, ::-1])


def naive_bootstrap(values_ST: Floats, draws: int) -> tuple[float, float]:
    """Return the bounds with the rows and the columns drawn one by one."""
    generator, (seeds, tasks) = np.random.default_rng(1), values_ST.shape
    means = [
        values_ST[generator.integers(seeds, size=seeds)][:, generator.integers(tasks, size=tasks)].mean()
        for _ in range(draws)
    ]
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def solved_with_spread(spread: float) -> Floats:
    """Return four training seeds on 130 tasks whose rates of success differ by up to `spread`."""
    rates_S = np.array([0.5 - spread / 2, 0.5, 0.5 + spread / 2, 0.5])
    solved: Floats = (np.random.default_rng(0).random((4, 130)) < rates_S[:, None]).astype(float)
    return solved


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_seeds_and_tasks_are_resampled_together(spread: float) -> None:
    values_ST = solved_with_spread(spread)
    interval = bootstrap(values_ST)
    assert interval.mean == pytest.approx(values_ST.mean())
    assert (interval.low, interval.high) == pytest.approx(naive_bootstrap(values_ST, 4000), abs=0.012)


def test_an_interval_is_wider_where_seeds_differ_more() -> None:
    similar, different = (bootstrap(solved_with_spread(spread)) for spread in (0.0, 0.5))
    assert different.high - different.low > 1.4 * (similar.high - similar.low)


def test_clusters_of_one_task_are_resampled_like_tasks() -> None:
    values_ST = np.random.default_rng(0).integers(2, size=(3, 60)).astype(float)
    alone = bootstrap(values_ST, np.array([str(task) for task in range(60)]))
    assert alone == bootstrap(values_ST)


def test_copies_of_a_task_in_its_cluster_change_nothing() -> None:
    values_ST = np.random.default_rng(0).integers(2, size=(2, 40)).astype(float)
    names_T = np.array([str(task) for task in range(40)])
    once = bootstrap(values_ST, names_T)
    assert bootstrap(np.repeat(values_ST, 5, axis=1), np.repeat(names_T, 5)) == pytest.approx(once)
    assert bootstrap(np.repeat(values_ST, 5, axis=1)).low > once.low + 0.02


def test_each_group_of_seeds_is_resampled_alone() -> None:
    """One draw of 27 takes only the worst of three seeds, and one only the best: more than 2.5% each."""
    first, second = np.array([[0.4], [0.6], [0.8]]) * np.ones(50), np.full((5, 50), 0.1)
    assert bootstrap((first, -second)) == pytest.approx(MeanInterval(0.5, 0.3, 0.7))


@pytest.mark.parametrize(
    ("interval", "excludes"),
    [
        (MeanInterval(0.2, 0.1, 0.3), True),
        (MeanInterval(-0.2, -0.3, -0.1), True),
        (MeanInterval(0.2, -0.1, 0.5), False),
        (MeanInterval(0.2, 0.0, 0.4), False),
        (MeanInterval(0.0, 0.0, 0.0), False),
    ],
)
def test_an_interval_that_touches_zero_does_not_exclude_it(interval: MeanInterval, excludes: bool) -> None:
    assert interval.excludes_zero is excludes


@pytest.mark.parametrize(
    ("low", "p_value", "claimed"),
    [
        (0.1, 0.049, True),
        (0.1, 0.05, False),  # The exact test disagrees.
        (-0.1, 0.049, False),  # The interval disagrees.
        (0.1, None, True),  # With training seeds there is no exact test.
        (-0.1, None, False),
    ],
)
def test_a_difference_is_claimed_if_interval_and_exact_test_agree(
    low: float, p_value: float | None, claimed: bool
) -> None:
    assert Comparison(MeanInterval(0.2, low, 0.5), p_value).claimed is claimed


def test_an_interval_is_written_as_mean_and_brackets() -> None:
    assert str(MeanInterval(0.25, 0.1, 0.4)) == "0.250 [0.100, 0.400]"


@pytest.mark.parametrize(
    ("first", "second", "p"),
    [
        ("1100", "1100", 1.0),  # No task distinguishes them.
        ("1000", "0000", 1.0),  # 1 to 0: 2 * (1 / 2), at most 1.
        ("1100", "0011", 1.0),  # 2 to 2.
        ("111110", "000000", 0.0625),  # 5 to 0: 2 * (1 / 32).
        ("1111110", "0000001", 0.125),  # 6 to 1: 2 * (1 + 7) / 128.
        ("1111111100", "0000000011", 0.109375),  # 8 to 2: 2 * (1 + 10 + 45) / 1024.
    ],
)
def test_mcnemars_exact_p_is_a_doubled_binomial_tail(first: str, second: str, p: float) -> None:
    assert mcnemar(outcomes(first), outcomes(second)) == p


def test_mcnemars_p_ignores_the_order_and_the_tasks_that_both_solved() -> None:
    first, second = outcomes("1111110"), outcomes("0000001")
    both = np.ones(100)
    assert mcnemar(first, second) == mcnemar(second, first)
    assert mcnemar(np.append(first, both), np.append(second, both)) == mcnemar(first, second)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([0.25] * 5 + [0.0] * 7, 2 / 32),  # The tasks with no difference do not count.
        ([0.5, 0.5, 0.5, -0.25], 2 * 2 / 16),  # Of the 16 sums, 1.75 and 1.25 are as far from 0, in both directions.
        ([0.5, -0.5], 1.0),
    ],
)
def test_the_sign_flip_p_is_the_share_of_signs_with_as_large_a_sum(differences: list[float], p: float) -> None:
    assert sign_flip(np.array(differences)) == pytest.approx(p, abs=0.01)


def test_mcnemars_p_of_very_many_tasks_is_still_a_number() -> None:
    assert mcnemar(np.ones(3000), np.zeros(3000)) == pytest.approx(0.0, abs=1e-300)


def test_mcnemars_p_of_thousands_of_tasks_is_exact() -> None:
    def p_value(only_first: int, only_second: int) -> float:
        first = np.repeat([1.0, 0.0], (only_first, only_second))
        return mcnemar(first, 1 - first)

    # At most 4,000 of 8,001 coin tosses are heads with probability 1/2.
    assert p_value(4000, 4001) == pytest.approx(1.0, rel=1e-9)
    tail = sum(comb(2500, count) for count in range(1201))
    assert p_value(1300, 1200) == pytest.approx(float(2 * tail / 2**2500), rel=1e-9)


@pytest.mark.parametrize("seeds", range(2, 14))
def test_the_interval_over_seeds_holds_95_percent_of_students_distribution(seeds: int) -> None:
    values = [0.0, 1.0] * (seeds // 2) + [0.5] * (seeds % 2)
    interval = over_seeds(values)
    quantile = (interval.high - interval.mean) / (stdev(values) / sqrt(seeds))
    # The density of Student's t with nu degrees of freedom, integrated up to the quantile by the midpoint rule.
    nu, width = seeds - 1, quantile / 20_000
    scale = gamma((nu + 1) / 2) / (sqrt(nu * pi) * gamma(nu / 2))
    points = (np.arange(20_000) + 0.5) * width
    inside = 2 * float((scale * (1 + points**2 / nu) ** (-(nu + 1) / 2)).sum() * width)
    # Above ten seeds the interval is slightly too wide.
    assert 0.9495 < inside < (0.9505 if seeds <= 10 else 0.96)
