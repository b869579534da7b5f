"""Tests of the comparison of two arms: groups of tasks, shares by trial, training seeds and intervals."""

from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from eval.view.index import Index
from eval.view.pages.compare import compare
from eval.view.site import Site
from retroformer.coach.stories.runs import open_runs
from retroformer.method.records import Key
from retroformer.run.store import NewTrajectory, Store
from tests.eval.view.test_pages import read
from tests.support.stories import DOOR, attempt

SOLVED = {"warm": "0110", "ppo-1": "1100", "ppo-2": "1101"}
"""Whether each arm solved the tasks a, b, c and d at its first retry."""


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    with closing(Store(f"sqlite:///{tmp_path}/experience.db", "seeds")) as store:
        for name, solved in SOLVED.items():
            arm = "eval/warm" if name == "warm" else f"eval/trained/{name}"
            store.declare(arm, {})
            for task_id, flag in zip("abcd", solved, strict=True):
                task = DOOR.model_copy(update={"id": task_id})
                for trial in (0, 1):
                    key = Key(arm=arm, task_id=task_id, trial=trial)
                    store.add([NewTrajectory(key, attempt("open", solved=trial == 1 and flag == "1", task=task))])
    return tmp_path


def test_tasks_are_won_lost_or_equal(client: TestClient) -> None:
    shown = read(client, "/compare", a="seeds: eval/trained/ppo-1", b="seeds: eval/warm", show="won")
    assert "4 tasks that both finished" in shown
    assert "1 Solved by A, not by B 1 Solved by B, not by A 1 Solved by both 1 Solved by neither" in shown
    assert "Solved by A, not by B Task A B a story solved story failed" in shown
    # One won and one lost: no difference, and a fair coin explains it.
    assert "1 50% 50% 0.000 [" in shown
    assert shown.split("1 50% 50% 0.000 [")[1].split("] ")[1].startswith("1.0000 ")


def test_training_seeds_of_an_arm_count_together(client: TestClient) -> None:
    shown = read(client, "/compare", a="seeds: eval/trained (2 seeds)", b="seeds: eval/warm", show="won")
    assert "2 Solved by A, not by B 1 Solved by B, not by A 1 Solved by both 0 Solved by neither" in shown
    # Shares of the seeds: 1, 1, 0 and .5, so .625 of the tasks against .5.
    assert "1 62% 50% 0.125 [" in shown
    assert "d ppo-1 ppo-2 50% story failed" in shown


def test_by_default_two_arms_of_one_run_are_compared(tmp_path: Path) -> None:
    for name, arms in (("first", ("collect",)), ("second", ("eval/base", "eval/sft")), ("third", ("eval/base",))):
        with closing(Store(f"sqlite:///{tmp_path}/experience.db", name)) as store:
            for arm in arms:
                store.declare(arm, {})
                store.add([NewTrajectory(Key(arm=arm, task_id=DOOR.id), attempt("open"))])
    with open_runs(tmp_path) as runs:
        sources = list(runs)
        site = Site(sources, Index(sources, tmp_path / "index.db"))
        site.index.update()
        shown = compare(site, {}).shown
    assert (shown["a"].name, shown["b"].name) == ("second: eval/sft", "second: eval/base")
    assert list(shown["lists"]) == ["won"]


def test_an_arm_that_is_not_there_gets_a_sentence(client: TestClient) -> None:
    answer = client.get("/compare", params={"a": "nobody"})
    assert answer.status_code == 404
    assert "There is no arm &#39;nobody&#39; to compare." in answer.text
