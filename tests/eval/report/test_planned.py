"""Tests of planned comparisons: each bound is met or missed by the trial and the tasks that it names."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from eval.measure.results import ArmResult
from eval.measure.statistics import Rates
from eval.report.solved import planned_results
from retroformer.config.sections.eval import PlannedComparison
from retroformer.environments import alfworld
from retroformer.method.records import Task
from retroformer.run.store import Store
from tests.support.evaluations import finished_seed
from tests.support.markdown_tables import markdown

TASKS = 20
WINS = {"rule": (4, 10, 12), "trained": (4, 14, 12), "worse": (4, 9, 12)}
"""Tasks that each arm has solved by each trial. The first four are solved at trial 0."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(f"sqlite:///{tmp_path / 'experience.db'}", "plan")) as opened:
        yield opened


def result(
    store: Store,
    unfinished: str = "",
    wins_of: Mapping[str, tuple[int, ...]] = WINS,
    lost: float = 0.0,
    **settings: Any,
) -> tuple[str, str, str]:
    """Return what the row of one comparison says was planned, the difference, and whether it was met.

    `lost` is the return of an attempt that fails.
    """
    arms = []
    for name, wins in wins_of.items():
        solved_NT = np.array([[float(task < won) for task in range(TASKS)] for won in wins])
        seed = finished_seed(f"eval/{name}", solved_NT, np.maximum(solved_NT, lost))
        seed.finished_T[-1] = name != unfinished
        arms.append(ArmResult(name, (seed,)))
    comparison = PlannedComparison.model_validate({"first": "trained", "second": "rule"} | settings)
    row = markdown(*planned_results((comparison,), Rates(arms), store)).splitlines()[-1]
    _, _, _, _, wanted, difference, met, _ = map(str.strip, row.split("|"))
    return wanted, difference, met


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"trial": 1, "mean": 0.25}, "met"),
        ({"trial": 1, "mean": 0.26}, "missed"),
        ({"trial": 1, "low": 0.0}, "met"),
        ({"trial": 1, "low": 0.2}, "missed"),
        ({"trial": 1, "mean": 0.25, "low": 0.2}, "missed"),
        ({"trial": 1, "first": "worse", "low": -0.2}, "met"),
        ({"trial": 1, "first": "worse", "low": 0.0}, "missed"),
        ({"low": -0.05}, "met"),
        ({"low": 0.0}, "missed"),
        ({"mean": 0.1}, "missed"),
    ],
)
def test_a_comparison_is_met_if_mean_and_lower_bound_are(store: Store, settings: dict[str, Any], expected: str) -> None:
    assert result(store, **settings)[2] == expected


def test_the_difference_is_over_the_failures_at_the_trial_that_is_named(store: Store) -> None:
    assert result(store, trial=1)[1].startswith("0.250 [")
    assert result(store)[1].startswith("0.000 [0.000, 0.000]")


def test_graded_returns_are_compared_instead_of_the_share_solved(store: Store) -> None:
    _, difference, met = result(store, trial=1, lost=0.5, mean=0.125)
    assert difference.startswith("0.125 [")
    assert met == "met"


@pytest.mark.parametrize(("arm", "expected"), [("trained", "open"), ("rule", "open"), ("worse", "met")])
def test_a_comparison_is_open_while_one_of_its_arms_has_unfinished_tasks(store: Store, arm: str, expected: str) -> None:
    assert result(store, unfinished=arm, trial=1, mean=0.25)[2] == expected


def test_a_comparison_without_a_task_that_counts_is_open(store: Store) -> None:
    everything = dict.fromkeys(WINS, (TASKS, TASKS, TASKS))
    assert result(store, wins_of=everything, mean=0.0, low=None)[1:] == ("-", "open")


def test_a_comparison_without_a_bound_is_refused() -> None:
    with pytest.raises(ValidationError, match="trained against rule has neither mean nor low"):
        PlannedComparison(first="trained", second="rule", low=None)


def test_tasks_of_one_cluster_are_also_resampled_together(store: Store) -> None:
    """Four clusters hold as much as four tasks, so the interval is about twice as wide."""
    arms = []
    for name, last_T in {"trained": np.repeat([1.0, 1.0, 0.0, 0.0], 4), "rule": np.zeros(16)}.items():
        solved_NT = np.stack([np.zeros(16), last_T])
        seed = finished_seed(f"eval/{name}", solved_NT)
        arms.append(ArmResult(name, (seed,)))
    comparison = PlannedComparison(first="trained", second="rule")
    clusters = [f"room {task // 4}" for task in range(16)]
    text = markdown(*planned_results((comparison,), Rates(arms), store, clusters))
    row = text.splitlines()[-1].strip("| ").split(" | ")
    assert "The 16 tasks form 4 clusters" in text
    assert row[4].startswith("0.500 [0.2")
    assert row[-1] == "[0.000, 1.000]"


def test_failures_of_arms_with_other_first_attempts_are_those_of_the_shared_one(store: Store) -> None:
    arms = []
    for name, first_T in {"own": (1.0, 1.0, 1.0, 0.0), "rule": (1.0, 0.0, 0.0, 0.0)}.items():
        solved_NT = np.array([first_T, first_T])
        seed = finished_seed(f"eval/{name}", solved_NT)
        arms.append(ArmResult(name, (seed,), shares_first=name == "rule"))
    comparison = PlannedComparison(first="own", second="rule")
    row = markdown(*planned_results((comparison,), Rates(arms), store)).splitlines()[-1].strip("| ").split(" | ")
    assert row[2] == "3 tasks that failed at trial 0 of rule, by the last trial"
    assert row[4].startswith("0.667 [")


def test_games_with_one_goal_in_one_room_are_one_cluster_and_generated_ones_have_their_own() -> None:
    cluster_of = alfworld.extras.cluster_of
    assert cluster_of is not None
    ids = [
        "look_at_obj_in_light-CD-None-DeskLamp-308/trial_T20190907_073439_112339",
        "look_at_obj_in_light-CD-None-DeskLamp-308/trial_T20190907_073521_905310",
        "look_at_obj_in_light-CD-None-DeskLamp-310/trial_T20190907_073521_905310",
        "generated/held_out/cool-pot-countertop-000000",
        "generated/held_out/cool-pot-countertop-000001",
    ]
    clusters = [cluster_of(Task(id=task_id, environment="alfworld", split="any")) for task_id in ids]
    assert clusters[0] == clusters[1] == "look_at_obj_in_light-CD-None-DeskLamp-308"
    assert len(set(clusters)) == 4


def test_fewer_than_two_clusters_have_no_interval(store: Store) -> None:
    solved_NT = np.array([[0.0] * 3, [1.0] * 3])
    seed = finished_seed("eval/trained", solved_NT)
    arms = [ArmResult(name, (seed,)) for name in ("trained", "rule")]
    comparison = PlannedComparison(first="trained", second="rule")
    text = markdown(*planned_results((comparison,), Rates(arms), store, ["a room"] * 3))
    assert text.splitlines()[-1].strip("| ").split(" | ")[-1] == "-"
