"""Tests of what keeps the site fast on a large run: lists read no attempts, and are sorted by an SQL index."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from eval.view.index import SORTS, Index
from eval.view.pages.stories import StoryFilter, neighbours, story_page
from eval.view.site import Site
from retroformer.method.records import Key, Task
from retroformer.run.arm_names import COLLECT
from retroformer.run.store import NewReflection, NewTrajectory, Store
from tests.support.stories import advice, attempt

LISTS = ("/", "/stories?q=go", "/stories?sort=best&page=2", "/compare?show=won", "/learning", "/review", "/version")
STORY = {"run": "alpha", "arm": COLLECT, "task": "task-07"}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    with closing(Store(f"sqlite:///{folder}/experience.db", "alpha")) as store:
        for arm in (COLLECT, "eval/warm", "eval/trained"):
            store.declare(arm, {"loop": {"memory": 3}})
            for number in range(40):
                task = Task(id=f"task-{number:02}", environment="doors", split="train")
                retry = Key(arm=arm, task_id=task.id, trial=1)
                solved = attempt("go", "open", solved=number % 3 == 0, task=task)
                failed = NewTrajectory(retry.model_copy(update={"trial": 0}), attempt("go", "wait", task=task))
                store.add([failed, NewReflection(retry, 0, advice("Open it.")), NewTrajectory(retry, solved)])
    return folder


class TracedIndex(Index):
    """Index that keeps the queries of its connections."""

    queries: list[str]

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        self.queries = []
        with super().connect() as connection:
            connection.set_trace_callback(self.queries.append)
            yield connection


def test_lists_read_no_attempt_and_a_story_only_its_own(client: TestClient, run_folder: Path) -> None:
    connection = sqlite3.connect(run_folder / "experience.db")
    with connection:
        for table in ("trajectories", "reflections"):
            connection.execute(f"UPDATE {table} SET record = 'unreadable' WHERE task_id != ?", (STORY["task"],))
    connection.close()
    for path in LISTS:
        assert client.get(path).status_code == 200, path
    assert "attempts and pieces of advice" in client.get("/story", params=STORY).text


def test_lists_and_neighbours_are_sorted_by_an_index(site: Site) -> None:
    index = TracedIndex(site.sources, site.index.path)
    for sort in SORTS:
        chosen = StoryFilter(sort=sort)
        rows = story_page(index, chosen).rows
        queries = list(index.queries)
        keys = [(row["run"], row["arm"], row["task"]) for row in rows]
        before, after = neighbours(index, chosen, keys[20])
        assert (tuple(before or ()), tuple(after or ())) == (keys[19], keys[21])
        queries += index.queries
        plan = [step for query in queries if "ORDER BY" in query for step in plan_of(index.path, query)]
        assert len(plan) >= 2
        assert [step for step in plan if f"INDEX story_by_{sort}" not in step] == []


def plan_of(path: Path, query: str) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    finally:
        connection.close()
