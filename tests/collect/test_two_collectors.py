"""Two collectors on one store divide the work: nothing is paid twice, and they share one budget."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.endpoint import Endpoint
from tests.support.killing import finish
from tests.support.postgres import PostgresDatabase
from tests.support.runs import facts, open_config, start, write_config

pytestmark = pytest.mark.usefixtures("workplace")

TASKS = 24


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return "store="
    database: PostgresDatabase = request.getfixturevalue("postgres")
    return f"store={database.url()}"


def both(folder: Path, arguments: list[str]) -> list[tuple[int, str, str]]:
    """Run two collectors at once; return their exit statuses, outputs and errors."""
    collectors: list[subprocess.Popen[str]] = [start(folder, "collect", arguments) for _ in range(2)]
    output = [collector.communicate(timeout=300) for collector in collectors]
    return [(collector.returncode, *words) for collector, words in zip(collectors, output, strict=True)]


def written(progress: str) -> int:
    """Number of reflections a collector has paid for, by its last progress line."""
    counts = re.findall(r"reflections (\d+)", progress)
    return int(counts[-1]) if counts else 0


@pytest.mark.slow
def test_two_collectors_make_the_same_calls_as_one(tmp_path: Path, store: str) -> None:
    with Endpoint() as server:
        config = write_config(tmp_path, server.url)
        words = [str(config), f"collect.tasks={TASKS}", "loop.concurrency=4", store]
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
    alone, together = (facts(open_config(config, *words[1:], f"run={run}")) for run in ("alone", "together"))
    assert together.same_as(alone)
    assert together.invalid == 0


def test_a_budget_is_shared(tmp_path: Path, store: str) -> None:
    limit, each, concurrency = 200, 10, 2
    with Endpoint() as server:
        server.latency_seconds = 0.05
        words = [f"collect.tasks={TASKS}", f"loop.concurrency={concurrency}", store]
        config = write_config(tmp_path, server.url)
        ended = both(tmp_path, [str(config), *words, f"collect.tokens={limit}"])
        assert [status for status, _, _ in ended] == [1, 1]
        assert all("The budget of 200 tokens is spent" in err for _, _, err in ended), ended
        spent = each * len(server.requests)
        # Each process may have calls in flight when the last token is spent.
        assert limit <= spent <= limit + 2 * concurrency * each
        assert each * len(facts(open_config(config, *words)).reflections) == spent
