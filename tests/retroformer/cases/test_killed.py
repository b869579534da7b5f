"""Test that an import of cases that is killed stores nothing, and that the same import again stores every case once."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import retroformer as rf
from retroformer.run.arm_names import COLLECT
from retroformer.run.store import Store
from tests.support.cases import case
from tests.support.killing import finish, start_and_kill
from tests.support.runs import ROOT, stored

CASES = 1500
FACTS = 3 * CASES


def written(path: Path) -> int:
    """Return the bytes of a file; 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def test_a_killed_import_stores_all_or_nothing_and_the_next_one_completes_it(tmp_path: Path) -> None:
    long = {"score": 0.0, "output": "No such order. " * 100}
    rf.write_cases(
        tmp_path / "cases.jsonl", (case(task={"id": f"{n}", "input": "Refund."}, attempt=long) for n in range(CASES))
    )
    command = ["import", str(ROOT / "configs/agent.yaml"), "cases.jsonl"]
    database, log = (tmp_path / "runs/agent" / f"experience.db{end}" for end in ("", "-wal"))
    # Within a transaction, facts that do not fit into SQLite's memory are in the log.
    moments: list[Callable[[int], bool]] = [
        lambda pid: database.exists(),
        lambda pid: written(log) > 1 << 20,
        lambda pid: written(log) > 4 << 20,
    ]
    killed = 0
    for moment in moments:
        ended = start_and_kill(tmp_path, "retroformer", command, moment)
        assert stored(database) == (0 if ended is None else FACTS)
        killed += ended is None
    assert killed >= 2
    assert f"{CASES} cases are in" in finish(tmp_path, "retroformer", command)
    assert " 0 of their facts new" in finish(tmp_path, "retroformer", command)
    assert stored(database) == FACTS
    with closing(Store(f"sqlite:///{database}", "agent")) as store:
        assert (store.arm_counts()[COLLECT].attempts, store.arm_counts()[COLLECT].advice) == (2 * CASES, CASES)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
