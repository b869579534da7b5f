"""A real PostgreSQL server on loopback, in a temporary folder; the fixtures are in tests/conftest.py.

`python -m tests.support.postgres` starts one, prints its folder and its URL, and keeps it until it is killed.
"""

import os
import pwd
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

_PROGRAMS = ("initdb", "pg_ctl", "postgres")
_PORTS = range(20_000, 30_000)
"""Range below the system's ephemeral ports, so that no other process takes the port of a stopped server."""
_OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
}
"""Settings without fsync: commits stay synchronous, so a killed server loses nothing; only a power cut would."""
_WATCH = 'read -r _; "$1" -D "$2/data" -m immediate -w stop >/dev/null 2>&1; rm -rf "$2"'
"""Shell command that waits for a line or the end of its input, then stops the server and removes its folder."""


def find_programs(search_path: str | None = None, debian: Path = Path("/usr/lib/postgresql")) -> Path | None:
    """Return the folder of PostgreSQL's server programs: on PATH, in Debian's place, or where `pg_config` says."""
    candidates = [Path(executable).parent for executable in [shutil.which("pg_ctl", path=search_path)] if executable]
    candidates += sorted(debian.glob("*/bin"), key=lambda folder: _version(folder.parent.name), reverse=True)
    if config := shutil.which("pg_config", path=search_path):
        process = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        candidates += [Path(process.stdout.strip())] if process.returncode == 0 else []
    return next((folder for folder in candidates if all((folder / name).is_file() for name in _PROGRAMS)), None)


def require_programs(programs: Path | None, environment: Mapping[str, str]) -> Path:
    """Return the folder; without one, skip the test, or fail it in continuous integration, which must never skip it."""
    if programs is not None:
        return programs
    missing = "PostgreSQL's server is not installed (no pg_ctl): install Debian's package `postgresql`."
    if environment.get("CI"):
        pytest.fail(f"{missing} It must not be missing where CI is set.")
    pytest.skip(missing)


class PostgresServer:
    """A server with a data folder of its own; it keeps its port and its data from one start to the next."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = _user()
        self.folder = Path(tempfile.mkdtemp(prefix="retroformer-postgres-"))
        if self._user:
            shutil.chown(self.folder, self._user)
        watch = ["sh", "-c", _WATCH, "sh", str(programs / "pg_ctl"), str(self.folder)]
        self._watcher = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True, **self._as_user())
        self._run("initdb", "-D", "data", "-A", "trust", "-U", "retroformer", "-E", "UTF8", "--no-locale", "--no-sync")
        self.port = 0
        self._databases = 0

    @property
    def running(self) -> bool:
        try:
            self._run("pg_ctl", "-D", "data", "status")
        except RuntimeError:
            return False
        return True

    def start(self) -> None:
        """Start the server and wait until it accepts connections; after the first time, on the same port."""
        if self.port:
            self._start()
            return
        for port in random.SystemRandom().sample(_PORTS, 20):
            if not _is_free(port):
                continue
            self.port = port
            try:
                self._start()
                return
            except RuntimeError as failure:  # Another process may have taken the port meanwhile.
                if "could not bind" not in str(failure):
                    raise
        raise RuntimeError(f"No port of 20 between {_PORTS.start} and {_PORTS.stop} was free.")

    def stop(self, immediate: bool = False) -> None:
        """Stop the server. `immediate` is an outage: connections break, and the next start recovers."""
        self._run("pg_ctl", "-D", "data", "-m", "immediate" if immediate else "fast", "-w", "stop")

    def restart(self, immediate: bool = False) -> None:
        """Stop and start on the same port."""
        self.stop(immediate)
        self.start()

    def url(self, database: str = "postgres") -> str:
        """Return the address of a database, as SQLAlchemy reads it."""
        return f"postgresql+psycopg://retroformer@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Create an empty database and return its name. It sorts text by locale, not by bytes, as most servers do."""
        self._databases += 1
        name = f"test_{self._databases}"
        self._execute(f"create database {name} template template0 locale_provider icu icu_locale 'en-US'")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database and its remaining connections."""
        self._execute(f"drop database {name} with (force)")

    def close(self) -> None:
        """Stop the server if it runs, and remove its folder."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.write(b"\n")
        self._watcher.stdin.close()
        self._watcher.wait()
        # The server's owner empties the folder, but cannot remove it from a folder owned by root.
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        options = " ".join(f"-c {name}='{value}'" for name, value in (_OPTIONS | {"port": str(self.port)}).items())
        try:
            self._run("pg_ctl", "-D", "data", "-l", "log", "-o", options, "-w", "-t", "300", "start")
        except RuntimeError as failure:
            raise RuntimeError(f"{failure}\n{(self.folder / 'log').read_text()}") from failure

    def _run(self, program: str, *arguments: str) -> None:
        # The server inherits the output of pg_ctl: a pipe would never reach its end, so use a file.
        with tempfile.TemporaryFile() as output:
            command = [str(self._programs / program), *arguments]
            done = subprocess.run(
                command, cwd=self.folder, stdout=output, stderr=output, check=False, **self._as_user()
            )
            if done.returncode:
                output.seek(0)
                raise RuntimeError(f"{program} ended with {done.returncode}: {output.read().decode()}")

    def _as_user(self) -> dict[str, str]:
        return {"user": self._user, "group": _group(self._user)} if self._user else {}

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url().replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute(statement.encode())


class PostgresDatabase:
    """An empty database of one test, on the server of the session."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server, self.name = server, name

    def url(self) -> str:
        """Return the address of the database, as SQLAlchemy reads it."""
        return self.server.url(self.name)


@contextmanager
def server_of(programs: Path) -> Iterator[PostgresServer]:
    """Start a server; at the end, stop it and remove its folder."""
    server = PostgresServer(programs)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextmanager
def database_on(server: PostgresServer) -> Iterator[PostgresDatabase]:
    """Yield an empty database; the server runs before and after the test, even if the test stops it."""
    _ensure_running(server)
    name = server.create_database()
    try:
        yield PostgresDatabase(server, name)
    finally:
        _ensure_running(server)
        server.drop_database(name)


def _ensure_running(server: PostgresServer) -> None:
    if not server.running:
        server.start()


def _user() -> str | None:
    """Return the user that runs the server if the tests run as root, which PostgreSQL refuses."""
    if os.getuid():
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _group(user: str) -> int:
    return pwd.getpwnam(user).pw_gid


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _version(name: str) -> tuple[int, ...]:
    """Return the version, such as 15 or 9.6, as a sort key; a folder with another name comes last."""
    parts = name.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else ()


def _main() -> None:
    programs = find_programs()
    assert programs is not None
    with server_of(programs) as server:
        sys.stdout.write(f"{server.folder} {server.url()}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    _main()
