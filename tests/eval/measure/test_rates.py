"""Tests of paired differences between arms with training seeds, computed by hand or simulated."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from eval.measure.results import ArmResult, Floats
from eval.measure.statistics import bootstrap, comparison, difference, mean_over_seeds
from tests.support.evaluations import finished_seed

FIRST, LAST = (0.0, 0.0, 1.0), (1.0, 0.0, 1.0)


def arm(name: str, *seeds: tuple[float, ...]) -> ArmResult:
    """Return an arm whose seeds solved these of three tasks by the last trial, and the third one by every trial."""
    results = []
    for number, solved in enumerate(seeds):
        first = solved if len(solved) != len(FIRST) else FIRST
        solved_NT = np.array([first, first, solved])
        results.append(finished_seed(f"eval/{name}/{number}", solved_NT))
    return ArmResult(name, tuple(results))


def listed(first: ArmResult, second: ArmResult, trial: int = -1) -> Any:
    (values,) = difference(first.solved_by(trial), second.solved_by(trial))
    return values.tolist()


def test_arms_with_as_many_seeds_are_paired_seed_by_seed() -> None:
    trained, started = arm("trained", (1, 1, 1), (0, 1, 1)), arm("started", (1, 0, 1), (0, 0, 1))
    assert listed(trained, started) == [[0, 1, 0], [0, 1, 0]]


def test_the_seeds_of_arms_with_other_numbers_of_them_are_groups_of_their_own() -> None:
    two, three = arm("two", (1, 1, 1), (0, 0, 1)), arm("three", (0, 0, 1), (1, 0, 1), (1, 1, 1))
    first, second = difference(two.solved_by(-1), three.solved_by(-1))
    assert first.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert second.tolist() == [[0, 0, -1], [-1, 0, -1], [-1, -1, -1]]
    assert mean_over_seeds((first, second)) == pytest.approx([-1 / 6, 1 / 6, 0])


def test_every_seed_is_compared_with_an_arm_that_has_none() -> None:
    trained, rule, none = arm("trained", (1, 1, 1), (0, 1, 1)), arm("rule", LAST), arm("none", FIRST)
    assert listed(trained, rule) == [[0, 1, 0], [-1, 1, 0]]
    assert listed(rule, none) == [1, 0, 0]
    assert [comparison(first, rule).p_value for first in (trained, none)] == [None, 1.0]


def test_a_comparison_is_after_the_last_trial() -> None:
    later = arm("later", LAST)
    results = later.seeds[0].solved_NT
    assert results[-1].tolist() != results[-2].tolist()
    assert comparison(later, arm("none", FIRST)).difference.mean == pytest.approx(1 / 3)


@pytest.mark.parametrize("trial", [0, 1])
def test_the_difference_is_that_after_the_trial(trial: int) -> None:
    assert listed(arm("rule", LAST), arm("none", FIRST), trial) == [0, 0, 0]


def equal_arm(chance: np.random.Generator, difficulty_T: Floats, seeds: int) -> ArmResult:
    """Return an arm that solves half of all tasks on average; one without training seeds is a program.

    Some tasks are harder for this arm than for another, and some of its training seeds are better than others.
    """
    log_odds_T = difficulty_T + chance.normal(0, 0.7, len(difficulty_T))
    log_odds_ST = log_odds_T + chance.normal(0, 0.5 if seeds > 1 else 0, (seeds, 1))
    solved = chance.random(log_odds_ST.shape) < 1 / (1 + np.exp(-log_odds_ST))
    return arm("any", *solved.astype(float))


@pytest.mark.parametrize("seeds", [(5, 1), (5, 3), (3, 10), (5, 5)])
def test_nineteen_of_twenty_intervals_cover_the_true_difference(seeds: tuple[int, int]) -> None:
    """Arms that are equally good over all seeds and tasks are compared in many repetitions of one experiment."""
    chance, repetitions, covered = np.random.default_rng(0), 300, 0
    for _ in range(repetitions):
        difficulty_T = chance.normal(0, 1.5, 60)
        first, second = (equal_arm(chance, difficulty_T, number) for number in seeds)
        covered += not bootstrap(difference(first.solved_by(-1), second.solved_by(-1)), draws=400).excludes_zero
    # Three standard errors.
    assert covered / repetitions == pytest.approx(0.95, abs=3 * sqrt(0.95 * 0.05 / repetitions))
