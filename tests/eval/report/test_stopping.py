"""Tests of the stopping rules, on invented curves over ten tasks."""

import numpy as np
import pytest

from eval.measure.results import ArmResult
from eval.report.solved import last_trial, stopping, stopping_rules
from tests.support.evaluations import evaluated, finished_seed
from tests.support.markdown_tables import markdown


def arm(name: str, *solved: int) -> ArmResult:
    """Return an arm that has solved these numbers of ten tasks by each trial."""
    solved_NT = np.array([[float(task < count) for task in range(10)] for count in solved])
    return ArmResult(name, (finished_seed(f"eval/{name}", solved_NT),))


@pytest.mark.parametrize(
    ("solved", "last"),
    [((3, 5, 6, 6, 8), 3), ((3, 3, 4, 5, 6), 1), ((3, 4, 5, 6, 7), 4), ((10, 10, 10, 10, 10), 1)],
)
def test_the_trials_end_with_the_first_one_without_improvement(solved: tuple[int, ...], last: int) -> None:
    assert last_trial(arm("x", *solved).solved_NT) == last


def test_each_rule_gives_the_share_solved_by_the_trial_at_which_it_stops() -> None:
    text = markdown(stopping_rules([arm("slow", 3, 3, 4, 5, 6), arm("steady", 3, 4, 5, 6, 7)]))
    assert "| slow | 0.400 | 0.300, after trial 1 | 0.600 |" in text
    assert "| steady | 0.500 | 0.700, after trial 4 | 0.700 |" in text


def test_too_few_trials_for_a_rule_to_matter_give_no_table() -> None:
    assert list(stopping(evaluated([arm("x", 3, 3, 3)]))) == []
