"""Tests of paired differences between arms with training seeds, computed by hand."""

from typing import Any

import numpy as np
import pytest

from eval.measure.rates import paired_difference
from eval.measure.results import ArmResult, SeedResult
from retroformer.records import Usage

FIRST, LAST = (0.0, 0.0, 1.0), (1.0, 0.0, 1.0)


def arm(name: str, *seeds: tuple[float, ...]) -> ArmResult:
    """Return an arm whose seeds solved these of three tasks by the last trial, and the third one by every trial."""
    results = []
    for number, solved in enumerate(seeds):
        solved_NT = np.array([FIRST, FIRST, solved])
        results.append(SeedResult(f"eval/{name}/{number}", solved_NT, solved_NT, solved_NT, solved_NT, 0, Usage()))
    return ArmResult(name, tuple(results), 0)


def listed(first: ArmResult, second: ArmResult, trial: int = -1) -> Any:
    return paired_difference(first, second, trial).tolist()


def test_arms_with_as_many_seeds_are_paired_seed_by_seed() -> None:
    trained, started = arm("trained", (1, 1, 1), (0, 1, 1)), arm("started", (1, 0, 1), (0, 0, 1))
    assert listed(trained, started) == [[0, 1, 0], [0, 1, 0]]


def test_arms_with_other_numbers_of_seeds_are_paired_in_all_combinations() -> None:
    two, three = arm("two", (1, 1, 1), (0, 0, 1)), arm("three", (0, 0, 1), (1, 0, 1), (1, 1, 1))
    assert listed(two, three) == [[1, 1, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0], [-1, 0, 0], [-1, -1, 0]]


def test_every_seed_is_compared_with_an_arm_that_has_none() -> None:
    assert listed(arm("trained", (1, 1, 1), (0, 1, 1)), arm("rule", LAST)) == [[0, 1, 0], [-1, 1, 0]]
    assert listed(arm("rule", LAST), arm("none", FIRST)) == [1, 0, 0]


@pytest.mark.parametrize("trial", [0, 1])
def test_the_difference_is_that_after_the_trial(trial: int) -> None:
    assert listed(arm("rule", LAST), arm("none", FIRST), trial) == [0, 0, 0]
