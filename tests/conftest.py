"""Fixtures that tests of several folders share, and the check that the suite leaves no files or processes behind."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
_LEFT_BY_WORKERS = pytest.StashKey[list[str]]()
_TARGETS = {
    "integrations": ("tests/retroformer/integrations/", "tests/test_integrations.py"),
    "docs": tuple(
        f"tests/test_{name}.py"
        for name in (
            "docs",
            "environment_guide",
            "evidence",
            "help",
            "paper_ledger",
            "papers",
            "quotes",
            "readme",
            "recorded_runs",
            "site",
            "wheel",
        )
    ),
}
"""Tests by their marker, which has a target of its own (`make test-integrations`)."""
_WARNINGS_OF_LIBRARIES = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)
_PATIENCE_SECONDS = 60.0
"""Time for processes to end after the suite; most end at once."""


def pytest_configure(config: pytest.Config) -> None:
    """Give the suite, with every process that it starts, its own temporary folder."""
    # Pytest's folders stay where they are, as those of failed tests are kept.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="retroformer-tests-"))
    folder.chmod(0o755)  # If root runs the suite, the PostgreSQL server of another user has its data below this folder.
    scratch = folder / "tmp"
    scratch.mkdir()
    scratch.chmod(0o1777)  # As /tmp is, so that this user can remove the folder, too.
    config.stash[_FOLDER], config.stash[_WRITERS], config.stash[_LEFT_BY_WORKERS] = scratch, {}, []
    # Importing transformers creates this folder, by default below the temporary one.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "torchinductor")
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test` leaves to other targets, and run the folders with the longest tests first.

    Two processes that share the files then end at about one time.
    """
    for item in items:
        for target, paths in _TARGETS.items():
            if item.nodeid.startswith(paths):
                item.add_marker(target)
        if item.nodeid.startswith("tests/train/"):
            item.add_marker(_WARNINGS_OF_LIBRARIES)
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
    items.sort(key=lambda item: not item.nodeid.startswith(("tests/train/", "tests/serve/")))


@pytest.fixture(autouse=True)
def _who_writes_to_the_temporary_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    """Record in which test a file appeared; fixtures of the session may remove theirs at its end."""
    yield
    for path in request.config.stash[_FOLDER].iterdir():
        request.config.stash[_WRITERS].setdefault(path, request.node.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a suite that leaves files or processes behind.

    Its processes are recognised by the temporary folder, which only they inherit. A worker of pytest-xdist checks what
    its own tests have left, and the process that started it reports that.
    """
    folder = session.config.stash[_FOLDER]
    until = time.monotonic() + _PATIENCE_SECONDS
    while (processes := _processes_with(f"TMPDIR={folder}")) and time.monotonic() < until:
        time.sleep(0.1)
    writers = session.config.stash[_WRITERS]
    files = [f"{path.name} (first seen after {writers.get(path, 'the last test')})" for path in folder.iterdir()]
    leftovers = [
        f"Tests left {what}: {'; '.join(left)}"
        for what, left in (("processes", processes), ("files in the temporary folder", files))
        if left
    ]
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["leftovers"] = leftovers
        return
    leftovers += session.config.stash[_LEFT_BY_WORKERS]
    if leftovers:
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        assert isinstance(reporter, pytest.TerminalReporter)
        for line in leftovers:
            reporter.write_line(f"\n{line}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Record what the tests of a pytest-xdist worker have left behind."""
    node.config.stash[_LEFT_BY_WORKERS] += getattr(node, "workeroutput", {}).get("leftovers", [])


def _processes_with(variable: str) -> list[str]:
    """Return the command lines of other processes with this variable; none without /proc."""
    leftovers = []
    # Python's resource tracker, which ends with this process.
    tracker = b"from multiprocessing.resource_tracker import main"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            variables, words = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:  # It has ended, or belongs to another user.
            continue
        if process.name != str(os.getpid()) and tracker not in words and variable.encode() in variables.split(b"\0"):
            leftovers.append(f"{process.name} {words.replace(bytes(1), b' ').decode(errors='replace')[:200]}")
    return leftovers


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty folder, in which `runs` is created."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Start the PostgreSQL server of the session; the fixture `postgres` gives a test its own database."""
    with server_of(require_programs(find_programs(), os.environ)) as server:
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """Yield an empty database; the test may stop and start `postgres.server`."""
    with database_on(postgres_server) as database:
        yield database


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store; a test that uses it runs on both databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'run' / 'experience.db'}"
    database: PostgresDatabase = request.getfixturevalue("postgres")
    return database.url()
