"""Two collectors on one store divide the work: nothing is paid twice, and they share one budget."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.endpoint import Endpoint
from tests.support.killing import finish
from tests.support.postgres import PostgresDatabase
from tests.support.runs import facts, open_page, start, write_page

TASKS = 24


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "store="
    database: PostgresDatabase = request.getfixturevalue("postgres")
    return f"store={database.url()}"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def both(folder: Path, arguments: list[str]) -> list[tuple[int, str, str]]:
    """Exit status and output of two collectors that were started at once."""
    collectors: list[subprocess.Popen[str]] = [start(folder, "collect", arguments) for _ in range(2)]
    said = [collector.communicate(timeout=240) for collector in collectors]
    return [(collector.returncode, *words) for collector, words in zip(collectors, said, strict=True)]


def written(progress: str) -> int:
    """How many reflections a collector has paid for, by its last line of progress."""
    found = re.findall(r"reflections (\d+)", progress)
    return int(found[-1]) if found else 0


def test_the_calls_of_two_collectors_are_those_of_one(tmp_path: Path, store: str) -> None:
    with Endpoint() as server:
        page = write_page(tmp_path, server.url)
        words = [str(page), f"collect.tasks={TASKS}", "loop.concurrency=4", store]
        finish(tmp_path, "collect", [*words, "run=alone"])
        price = len(server.requests)
        server.requests.clear()
        server.latency_seconds = 0.1
        ended = both(tmp_path, [*words, "run=together"])
        assert [status for status, _, _ in ended] == [0, 0], ended
        assert len(server.requests) == price
        shares = [written(progress) for _, _, progress in ended]
        assert sum(shares) == price
        assert min(shares) > price / 5
        assert f"tasks        {TASKS} of {TASKS} played" in ended[0][1]
        assert ended[0][1] == ended[1][1]
    alone, together = (facts(open_page(page, *words[1:], f"run={run}")) for run in ("alone", "together"))
    assert together.same_as(alone)
    assert together.invalid == 0


def test_a_budget_is_shared(tmp_path: Path, store: str) -> None:
    limit, each, concurrency = 200, 10, 2
    with Endpoint() as server:
        server.latency_seconds = 0.05
        words = [f"collect.tasks={TASKS}", f"loop.concurrency={concurrency}", store]
        page = write_page(tmp_path, server.url)
        ended = both(tmp_path, [str(page), *words, f"collect.tokens={limit}"])
        assert [status for status, _, _ in ended] == [1, 1]
        assert all("The budget of 200 tokens is spent" in err for _, _, err in ended), ended
        spent = each * len(server.requests)
        # Each process may have calls in flight when the last token is spent.
        assert limit <= spent <= limit + 2 * concurrency * each
        assert each * len(facts(open_page(page, *words)).reflections) == spent
