"""Tests of the tables of failures solved: counts of every trial, and differences of graded returns, worked by hand."""

from dataclasses import replace

import numpy as np

from eval.measure.results import ArmResult
from eval.report.solved import return_differences, solved_of_failed
from tests.support.evaluations import finished_seed
from tests.support.markdown_tables import markdown, tables_in

FAILED, SOLVED = (1, 0, 0, 0, 0), (1, 1, 0, 0, 0)


def arm(name: str, *seeds: tuple[int, ...]) -> ArmResult:
    """Return an arm whose seeds solve these of five tasks by trial 2, and the first two by trial 1."""
    results = []
    for number, solved in enumerate(seeds):
        solved_NT = np.array([FAILED, SOLVED, solved], dtype=float)
        results.append(finished_seed(f"eval/{name}/{number}", solved_NT))
    return ArmResult(name, tuple(results))


def test_failures_are_those_of_the_trial_0_that_arms_share_whichever_arm_comes_first() -> None:
    own = replace(arm("own", (1, 1, 1, 1, 1)), shares_first=False)
    own.seeds[0].solved_NT[0] = (0, 0, 1, 1, 0)
    text = markdown(*solved_of_failed([own, arm("none", FAILED), arm("rule", (1, 1, 1, 1, 0))]))
    note, _, counted = text.partition(
        " Arms that played another trial 0, and may have solved such a task at once: *own*."
    )
    assert note == "These tasks failed at the trial 0 of *none*."
    rows = [[cell.split(":")[0] for cell in row.split(" | ")] for row in tables_in(counted)[0]]
    assert rows == [["| own", "1", "4"], ["| none", "1", "0"], ["| rule", "1", "3"]]


def graded(name: str, *returns: float) -> ArmResult:
    """Return an arm with these returns after the last of two trials, none of which solves a task."""
    solved_NT, return_NT = np.zeros((2, len(returns))), np.array([[0.0] * len(returns), returns])
    return ArmResult(name, (finished_seed(f"eval/{name}", solved_NT, return_NT),))


def test_graded_returns_are_compared_with_a_test_of_their_own() -> None:
    better = graded("better", 0.5, 0.7, 0.9, 0.4, 0.6, 0.8, 0.5, 0.7)
    (shown,) = return_differences([graded("none", *[0.3] * 8), better])
    (row,) = tables_in(markdown(shown))[0]
    cells = row.strip("| ").split(" | ")
    assert cells[:2] == ["better", "none"]
    assert cells[2].startswith("0.338 [")
    assert cells[3:5] == ["8", "0"]
    # All eight signs must agree: 2 / 2**8.
    assert abs(float(cells[5]) - 0.0078) < 0.003
    assert list(return_differences([graded("none", 0, 1, 0), graded("all", 1, 1, 1)])) == []


def test_equal_graded_returns_are_no_difference() -> None:
    (shown,) = return_differences([graded("one", 0.5, 0.2, 0.9), graded("other", 0.2, 0.5, 0.9)])
    assert tables_in(markdown(shown))[0][0].endswith("| 1 | 1 | 1.0000 |")
