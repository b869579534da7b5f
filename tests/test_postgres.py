"""Whole stages on PostgreSQL store the same facts as on SQLite; and the test server leaves nothing behind."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from retroformer.run.arm_names import COLLECT, FIRST_TRIAL
from retroformer.run.store import Store
from tests.support.endpoint import Endpoint
from tests.support.killing import finish
from tests.support.postgres import PostgresDatabase, find_programs, require_programs
from tests.support.runs import ROOT, write_config
from tests.support.waiting import becomes_true

ARMS = (COLLECT, FIRST_TRIAL, "eval/no reflection", "eval/remote reflector", "eval/placebo")
PATIENCE_SECONDS = 300.0
"""Upper bound for the stop of a server on a loaded machine."""


def content_hash(store: Store) -> str:
    """Return a hash of every key and record of every arm, in the order of the store."""
    digest = hashlib.sha256()
    for arm in ARMS:
        for key, trajectory in store.stream_trajectories(arm):
            digest.update(f"{key.model_dump_json()} {trajectory.model_dump_json()}\n".encode())
        for stored in store.stream_reflections(arm):
            record = stored.reflection.model_dump_json()
            digest.update(f"{stored.key.model_dump_json()} {stored.previous_candidate} {record}\n".encode())
    return digest.hexdigest()


def facts_after_two_stages(folder: Path, url: str, store: str) -> tuple[str, dict[str, tuple[int, int]], str]:
    """Collect and evaluate in separate processes; return content hash, counts by arm, and the report's numbers."""
    folder.mkdir()
    path = str(write_config(folder, url))
    finish(folder, "collect", [path, f"store={store}"])
    finish(folder, "eval", [path, f"store={store}"])
    opened = Store(store.replace("sqlite:///", f"sqlite:///{folder}/"), "toy")
    try:
        counts = {
            arm: (len(list(opened.stream_trajectories(arm))), len(list(opened.stream_reflections(arm)))) for arm in ARMS
        }
        report = (folder / "runs" / "toy" / "eval" / "report.md").read_text()
        return content_hash(opened), counts, report.partition("## Where this comes from")[0]
    finally:
        opened.close()


@pytest.mark.slow
def test_collect_and_eval_end_with_the_same_facts_on_postgresql_as_on_sqlite(
    tmp_path: Path, postgres: PostgresDatabase
) -> None:
    with Endpoint() as server:
        on_sqlite = facts_after_two_stages(tmp_path / "sqlite", server.url, "sqlite:///facts.db")
        on_postgres = facts_after_two_stages(tmp_path / "postgresql", server.url, postgres.url())
    assert all(attempts and reflections for arm, (attempts, reflections) in on_sqlite[1].items() if arm != FIRST_TRIAL)
    assert on_postgres == on_sqlite


def test_a_restarted_server_has_its_port_and_its_committed_data(postgres: PostgresDatabase) -> None:
    address, port = postgres.url().replace("+psycopg", ""), postgres.server.port
    with psycopg.connect(address) as connection:
        connection.execute("create table facts (number integer)")
        connection.execute("insert into facts values (7)")
        connection.commit()
        postgres.server.stop(immediate=True)
        assert not postgres.server.running
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select number from facts")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)
    postgres.server.start()
    postgres.server.restart()
    assert postgres.server.port == port
    with psycopg.connect(address) as connection:
        assert connection.execute("select number from facts").fetchall() == [(7,)]


@pytest.mark.parametrize("number", [1, 2])
def test_every_test_has_an_empty_database_and_a_running_server(postgres: PostgresDatabase, number: int) -> None:
    with psycopg.connect(postgres.url().replace("+psycopg", "")) as connection:
        connection.execute("create table facts (number integer)")
        assert connection.execute("select count(*) from facts").fetchone() == (0,)
        connection.commit()
    postgres.server.stop()


def test_a_server_ends_with_its_parent_process_and_removes_its_folder() -> None:
    require_programs(find_programs(), os.environ)
    command = [sys.executable, "-m", "tests.support.postgres"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder, url = process.stdout.readline().split()
    assert Path(folder, "data").is_dir()
    assert answers(url)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert becomes_true(lambda: not Path(folder).exists() and not answers(url))


def answers(url: str) -> bool:
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_without_a_server_a_test_is_skipped_except_in_continuous_integration(tmp_path: Path) -> None:
    missing = find_programs(search_path=str(tmp_path), debian=tmp_path)
    assert missing is None
    with pytest.raises(pytest.skip.Exception, match="install Debian's package `postgresql`"):
        require_programs(missing, {})
    with pytest.raises(pytest.fail.Exception, match="must not be missing where CI is set"):
        require_programs(missing, {"CI": "true"})


def programs_in(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def test_programs_are_searched_on_path_then_in_debians_newest_folder_then_by_pg_config(tmp_path: Path) -> None:
    whole = ("initdb", "pg_ctl", "postgres")
    on_path = programs_in(tmp_path / "path", *whole)
    debian = tmp_path / "debian"
    programs_in(debian / "9.6" / "bin", *whole)
    newest = programs_in(debian / "15" / "bin", *whole)
    programs_in(debian / "16" / "bin", "pg_ctl")  # The client alone is not a server.
    elsewhere = programs_in(tmp_path / "elsewhere", *whole)
    config = programs_in(tmp_path / "config", "pg_config")
    (config / "pg_config").write_text(f'#!/bin/sh\necho "{elsewhere}"\n')
    assert find_programs(f"{on_path}{os.pathsep}{config}", debian) == on_path
    assert find_programs(str(config), debian) == newest
    assert find_programs(str(config), tmp_path / "nowhere") == elsewhere
