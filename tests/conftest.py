"""Fixtures that tests of several folders share, and the check that the suite leaves no files or processes behind."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import (
    PostgresDatabase,
    PostgresServer,
    database_on,
    find_programs,
    require_programs,
    server_of,
)

_FOLDER = pytest.StashKey[Path]()
_WRITERS = pytest.StashKey[dict[Path, str]]()
_PATIENCE_SECONDS = 60.0
"""How long processes may take to end once the suite is over; most are gone at once."""


def pytest_configure(config: pytest.Config) -> None:
    """Give the suite and every process that it starts a temporary folder of its own."""
    # Pytest's folders stay where they are, as those of failed tests are kept.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="retroformer-tests-"))
    folder.chmod(0o755)  # Where root runs the suite, a PostgreSQL server of another user has its data below.
    scratch = folder / "tmp"
    scratch.mkdir()
    scratch.chmod(0o1777)  # As /tmp is, so that this user can remove the folder, too.
    config.stash[_FOLDER], config.stash[_WRITERS] = scratch, {}
    # Importing transformers makes this folder, below the temporary one where nothing else is said.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "torchinductor")
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.fixture(autouse=True)
def _who_writes_to_the_temporary_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remember in which test a file appeared; fixtures of the session may remove theirs at its end."""
    yield
    for path in request.config.stash[_FOLDER].iterdir():
        request.config.stash[_WRITERS].setdefault(path, request.node.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a suite that leaves files or processes behind.

    Its processes are known by the temporary folder, which only they inherit.
    """
    folder = session.config.stash[_FOLDER]
    until = time.monotonic() + _PATIENCE_SECONDS
    while (processes := _processes_with(f"TMPDIR={folder}")) and time.monotonic() < until:
        time.sleep(0.1)
    writers = session.config.stash[_WRITERS]
    files = [f"{path.name} (first seen after {writers.get(path, 'the last test')})" for path in folder.iterdir()]
    for what, left in (("processes", processes), ("files in the temporary folder", files)):
        if left:
            reporter = session.config.pluginmanager.getplugin("terminalreporter")
            assert isinstance(reporter, pytest.TerminalReporter)
            reporter.write_line(f"\nTests left {what}: {'; '.join(left)}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _processes_with(variable: str) -> list[str]:
    """The command lines of other processes with this variable; none where there is no /proc."""
    found = []
    # Python's own, which ends with this process: it watches shared memory and semaphores.
    tracker = b"from multiprocessing.resource_tracker import main"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables, words = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:  # It has ended, or belongs to somebody else.
            continue
        if process.name != str(os.getpid()) and tracker not in words and variable.encode() in variables.split(b"\0"):
            found.append(f"{process.name} {words.replace(bytes(1), b' ').decode(errors='replace')[:200]}")
    return found


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The PostgreSQL server of the session; use the fixture `postgres` for a database of the test's own."""
    with server_of(require_programs(find_programs(), os.environ)) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """An empty database; `postgres.server` can be stopped and started by the test."""
    with database_on(postgres_server) as database:
        yield database
