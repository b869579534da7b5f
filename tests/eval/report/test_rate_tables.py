"""Tests of the tables of failures solved: counts and paired differences of every trial, computed by hand."""

from dataclasses import replace

import numpy as np

from eval.measure.results import ArmResult, SeedResult
from eval.report.solved import solved_of_failed
from retroformer.method.records import Usage
from tests.support.markdown_tables import markdown, tables_in

FAILED, SOLVED = (1, 0, 0, 0, 0), (1, 1, 0, 0, 0)


def arm(name: str, *seeds: tuple[int, ...]) -> ArmResult:
    """Return an arm whose seeds solve these of five tasks by trial 2, and the first two by trial 1."""
    results = []
    for number, solved in enumerate(seeds):
        solved_NT = np.array([FAILED, SOLVED, solved], dtype=float)
        results.append(SeedResult(f"eval/{name}/{number}", solved_NT, solved_NT, solved_NT, solved_NT, 0, Usage()))
    return ArmResult(name, tuple(results), 0)


def test_differences_are_shown_for_every_trial_in_which_failures_are_retried() -> None:
    text = markdown(*solved_of_failed([arm("none", FAILED), arm("rule", (1, 1, 1, 1, 0))]))
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("|")]
    assert ["arm", "by trial 1", "by trial 2"] in rows
    assert ["first arm", "second arm", "by trial 1", "by trial 2"] in rows
    (compared,) = [row for row in rows if row[:2] == ["rule", "none"]]
    assert [cell.split(" ")[0] for cell in compared[2:]] == ["0.000", "0.750"]


def test_with_training_seeds_every_trial_has_the_interval_of_these_seeds_too() -> None:
    results = [arm("none", FAILED), arm("trained", (1, 1, 1, 1, 0), (1, 1, 1, 0, 0))]
    text = markdown(*solved_of_failed(results))
    assert "| by trial 1 | by trial 1, with these seeds | by trial 2 | by trial 2, with these seeds |" in text


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
