"""The judge of `make faults` notices each kind of harm to a store, and nothing in an unharmed one."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from retroformer.run.store import Store, open_store
from tests.collect.test_rate import collect
from tests.faults.invariant import Ended, Whole, violations, whole_of
from tests.support.endpoint import Endpoint
from tests.support.runs import open_config, write_config

CALLS = 10
HARM = {
    "attempt lost": "DELETE FROM trajectories WHERE rowid = (SELECT max(rowid) FROM trajectories)",
    "attempt too many": "UPDATE trajectories SET candidate = 7 WHERE rowid = (SELECT max(rowid) FROM trajectories)",
    "attempt silently zero": "UPDATE trajectories SET episode_return = 0, outcome = 'failure', "
    """record = replace(replace(record, '"success"', '"failure"'), '"reward":1.0', '"reward":0.0')""",
    "attempt different": "UPDATE trajectories SET record = replace(record, 'You are in', 'You were in')",
    "reflection differs": "UPDATE reflections SET text = 'Look.', record = json_set(record, '$.text', 'Look.')",
    "rating differs": "UPDATE trajectories SET episode_return = 0.5 WHERE trial > 0",
    "invalid outcome without a cause": "INSERT INTO invalids (experiment, arm, task_id, trial, candidate, repeat, "
    "cause, stored_at) VALUES ('toy', 'collect', 'task', 0, 0, 0, ' ', '2000-01-01T00:00:00+00:00')",
    "arm differs": "UPDATE arms SET arm = 'another'",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the config and the store of a finished run."""
    folder = tmp_path_factory.mktemp("run")
    with Endpoint() as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        collect(open_config(write_config(folder, server.url)))
    return folder


@contextmanager
def store_in(folder: Path) -> Iterator[Store]:
    url = f"store=sqlite:///{folder / 'runs/toy/experience.db'}"
    with closing(open_store(open_config(folder / "toy.yaml", url).experiment)) as store:
        yield store


@pytest.fixture
def whole(run: Path) -> Whole:
    with store_in(run) as store:
        return whole_of(store, CALLS)


@pytest.mark.parametrize(("sentence", "statement"), HARM.items(), ids=HARM.keys())
def test_harm_is_noticed(run: Path, whole: Whole, tmp_path: Path, sentence: str, statement: str) -> None:
    folder = tmp_path / "harmed"
    shutil.copytree(run, folder)
    with closing(sqlite3.connect(folder / "runs/toy/experience.db")) as connection, connection:
        assert connection.execute(statement).rowcount > 0
    with store_in(folder) as store:
        assert any(sentence in violation for violation in violations(store, whole, Ended(CALLS, 0)))


def test_calls_beyond_those_in_flight_are_noticed(run: Path, whole: Whole) -> None:
    with store_in(run) as store:
        assert violations(store, whole, Ended(CALLS + 3, 3)) == []
        (violation,) = violations(store, whole, Ended(CALLS + 4, 3))
    assert "14 calls were paid for, and 10 plus 3 in flight were allowed" in violation
