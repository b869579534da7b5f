"""Tests of planned comparisons: each bound is met or missed by the trial and the tasks that it names."""

from pathlib import Path

import numpy as np
import pytest

from eval.measure.rates import rates_of
from eval.measure.results import ArmResult, SeedResult
from eval.report.planned import planned
from retroformer.experiment.sections.eval import PlannedComparison
from retroformer.records import Usage
from retroformer.store import Store

TASKS = 20
WINS = {"rule": (4, 10, 12), "trained": (4, 14, 12), "worse": (4, 9, 12)}
"""Tasks that each arm has solved by each trial. The first four are solved at trial 0."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path / 'experience.db'}", "plan")


def result(store: Store, **settings: object) -> tuple[str, str, str]:
    """Return what the row of one comparison says was planned, the difference, and whether it was met."""
    arms = []
    for name, wins in WINS.items():
        solved_NT = np.array([[float(task < won) for task in range(TASKS)] for won in wins])
        arms.append(
            ArmResult(
                name,
                (SeedResult(f"eval/{name}", solved_NT, solved_NT, solved_NT, solved_NT, 0, Usage()),),
                incomplete=0,
            )
        )
    comparison = PlannedComparison.model_validate({"first": "trained", "second": "rule"} | settings)
    row = planned((comparison,), rates_of(arms, seed=0), store, "").splitlines()[-1]
    _, _, _, _, wanted, difference, met, _ = map(str.strip, row.split("|"))
    return wanted, difference, met


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"trial": 1, "mean": 0.2, "of": "tasks"}, "met"),
        ({"trial": 1, "mean": 0.21, "of": "tasks"}, "missed"),
        ({"trial": 1, "mean": 0.25, "of": "failures"}, "met"),
        ({"trial": 1, "of": "failures", "low": 0.0}, "met"),
        ({"trial": 1, "of": "failures", "low": 0.2}, "missed"),
        ({"trial": 1, "of": "failures", "mean": 0.25, "low": 0.2}, "missed"),
        ({"trial": 1, "first": "worse", "low": -0.2}, "met"),
        ({"trial": 1, "first": "worse", "low": 0.0}, "missed"),
        ({"low": -0.05}, "met"),
        ({"low": 0.0}, "missed"),
        ({"mean": 0.1}, "missed"),
    ],
)
def test_a_comparison_is_met_if_mean_and_lower_bound_are(
    store: Store, settings: dict[str, object], expected: str
) -> None:
    assert result(store, **settings)[2] == expected


def test_the_difference_is_over_the_tasks_and_the_trial_that_are_named(store: Store) -> None:
    assert result(store, trial=1, of="tasks")[1].startswith("0.200 [")
    assert result(store, trial=1, of="failures")[1].startswith("0.250 [")
    assert result(store)[1].startswith("0.000 [0.000, 0.000]")
