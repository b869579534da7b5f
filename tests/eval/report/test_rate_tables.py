"""Tests of the tables of failures solved: counts and paired differences of every trial, computed by hand."""

import numpy as np

from eval.measure.results import ArmResult, SeedResult
from eval.measure.statistics import Intervals
from eval.report.rate_tables import solved_of_failed
from retroformer.records import Usage

FAILED, SOLVED = (1, 0, 0, 0, 0), (1, 1, 0, 0, 0)


def arm(name: str, *seeds: tuple[int, ...]) -> ArmResult:
    """Return an arm whose seeds solve these of five tasks by trial 2, and the first two by trial 1."""
    results = []
    for number, solved in enumerate(seeds):
        solved_NT = np.array([FAILED, SOLVED, solved], dtype=float)
        results.append(SeedResult(f"eval/{name}/{number}", solved_NT, solved_NT, solved_NT, solved_NT, 0, Usage()))
    return ArmResult(name, tuple(results), 0)


def test_differences_are_shown_for_every_trial_in_which_failures_are_retried() -> None:
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in solved_of_failed([arm("none", FAILED), arm("rule", (1, 1, 1, 1, 0))], Intervals(0)).splitlines()
        if row.startswith("|")
    ]
    assert ["arm", "by trial 1", "by trial 2"] in rows
    assert ["first arm", "second arm", "by trial 1", "by trial 2"] in rows
    (compared,) = [row for row in rows if row[:2] == ["rule", "none"]]
    assert [cell.split(" ")[0] for cell in compared[2:]] == ["0.000", "0.750"]


def test_with_training_seeds_every_trial_has_the_interval_of_these_seeds_too() -> None:
    text = solved_of_failed([arm("none", FAILED), arm("trained", (1, 1, 1, 1, 0), (1, 1, 1, 0, 0))], Intervals(0))
    assert "| by trial 1 | by trial 1, with these seeds | by trial 2 | by trial 2, with these seeds |" in text
