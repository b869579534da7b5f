"""Tests of the recorded runs of Reflexion, counted again from the real logs."""

import pytest

from benchmarks.recorded import RUNS, curves, read, report
from tests.support.data import require_data
from tests.support.runs import ROOT

LOGS = "recorded/reflexion_logs.jsonl.xz"


@pytest.fixture(scope="module")
def logs() -> dict[str, str]:
    return read(require_data(LOGS))


def test_our_exact_match_solves_as_many_questions_in_each_trial_as_the_logs_note(logs: dict[str, str]) -> None:
    judged = [(run.title, curve.solved, curve.noted) for run, curve in curves(logs) if run.title.startswith("HotPotQA")]
    assert len(judged) == 6
    assert [title for title, solved, noted in judged if solved != noted] == []


def test_every_run_has_the_tasks_and_the_trials_of_the_paper(logs: dict[str, str]) -> None:
    expected = {"HotPotQA": 100, "ALFWorld": 134, "WebShop": 100}
    for run, curve in curves(logs):
        assert curve.tasks == expected[run.title.partition(",")[0]]
        assert len(curve.solved) == run.trials


def test_the_recorded_runs_end_within_two_points_of_the_printed_numbers(logs: dict[str, str]) -> None:
    printed = {run.title: run.last for run in RUNS if run.last is not None}
    ends = {run.title: curve.solved[-1] / curve.tasks for run, curve in curves(logs) if run.title in printed}
    assert ends == pytest.approx(printed, abs=0.0201)


def test_the_page_of_the_documentation_is_what_the_command_prints(logs: dict[str, str]) -> None:
    assert (ROOT / "docs/results/recorded.md").read_text() == report(logs)
