"""Connections to a SQLite file or a PostgreSQL server. Temporary errors are retried; others raise StoreError."""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects import postgresql, sqlite

from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import RetroformerError, StoreError
from retroformer.files.bounded import size
from retroformer.run.store.schema import LONGEST_FACT_BYTES, METADATA, check_foreign

Result = TypeVar("Result")

PATIENCE_SECONDS = 60.0
"""Time for which a transaction is retried after temporary errors, such as a server restart."""
_LOCK_SECONDS = 30
"""Time for which a SQLite writer waits for another writer."""
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_NETWORK_TIMEOUTS = {"connect_timeout": 10, "keepalives_idle": 30, "tcp_user_timeout": 60_000}
"""Timeouts in seconds, the last in milliseconds: a network that drops packets must not hang a stage forever."""
_SQLITE = {"timeout": _LOCK_SECONDS, "isolation_level": None}
"""Settings of SQLite's driver: `_begin_sqlite` begins the transactions, not the driver."""
_READ_ONLY = {"options": "-c default_transaction_read_only=on"}
_ROWS_AT_ONCE = 1000
"""Number of rows of a stream in memory at a time."""

_DATABASES = ("sqlite", "postgresql")
"""Schemes of the addresses of stores, without the driver."""
_TEMPORARY_STATES = ("08", "57P", "53300", "40001", "40P01", "55P03")
"""SQLSTATE codes, or their prefixes, of lost connections, restarts, too many clients, and conflicts."""
_TEMPORARY_WORDS = (
    "database is locked",
    "database table is locked",
    "connection failed",
    "connection refused",
    "server closed the connection",
    "consuming input failed",
    "the connection is closed",
    "the connection is lost",
    "terminating connection",
    "starting up",
    "shutting down",
)

_CREATION_LOCK = 0x726574726F
"""Key of PostgreSQL's advisory lock on creating the tables: the letters of `retro`."""

_log = logging.getLogger(__name__)


class Database:
    """Database of the store. Any thread may run transactions on its tables."""

    def __init__(
        self, url: str | SecretUrl, patience_seconds: float = PATIENCE_SECONDS, *, read_only: bool = False
    ) -> None:
        """Connect, and create missing tables; with `read_only`, change nothing. Raises StoreError."""
        self._patience, self._closing = patience_seconds, threading.Event()
        self.url = SecretUrl(url)
        # The pool would log, with a traceback, errors that are retried or raised here.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        with self._translated():
            parsed = parse_url(self.url)
            self._file = Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None
            if self._file is not None and not read_only:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            arguments = _SQLITE if self._file else _NETWORK_TIMEOUTS | (_READ_ONLY if read_only else {})
            self._engine = sa.create_engine(_for_reading(parsed) if read_only else parsed, connect_args=arguments)
            self.dialect = self._engine.dialect.name
            if self.dialect == "sqlite":
                event.listen(self._engine, "connect", _set_up_reader if read_only else _set_up_writer)
                event.listen(self._engine, "begin", _begin_sqlite)
            try:
                if read_only:
                    self._check_tables()
                else:
                    self._create_tables()
            except BaseException:
                self._engine.dispose()
                raise
            self._inodes = _inodes(self._file)

    def read(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work`, which only reads, in a transaction. Raises StoreError."""
        return self._patiently(lambda: self._in_transaction(self._engine, work))

    def write(self, work: Callable[[sa.Connection], Result]) -> Result:
        """Run `work` in a transaction, all or nothing, and repeat it after a temporary error. Raises StoreError.

        If the connection is lost during the commit, the transaction may run twice: facts are still stored once, but
        their usage may be counted twice.
        """
        if _inodes(self._file) != self._inodes:
            raise StoreError(
                f"The file of the store {self.url}, or its -wal or -shm file, was removed or replaced while it was in "
                "use: put it back and run again."
            )
        engine = self._engine.execution_options(writes=True)
        return self._patiently(lambda: self._in_transaction(engine, work))

    def stream(self, query: sa.Select[Any]) -> Iterator[sa.Row[Any]]:
        """Yield the rows of a query, with a thousand in memory at a time. Raises StoreError.

        Only the start is retried; a connection lost between two rows is an error.
        """
        with self._translated():
            connection, rows = self._patiently(lambda: self._open_cursor(query))
            with connection, closing(rows):
                yield from rows

    def _open_cursor(self, query: sa.Select[Any]) -> tuple[sa.Connection, sa.CursorResult[Any]]:
        connection = self._engine.connect()
        try:
            return connection, connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)
        except BaseException:
            connection.close()
            raise

    @staticmethod
    def _in_transaction(engine: sa.Engine, work: Callable[[sa.Connection], Result]) -> Result:
        with engine.begin() as connection:
            return work(connection)

    def give_up(self) -> None:
        """Stop retrying: the error of a server that does not answer is raised now."""
        self._closing.set()

    def close(self) -> None:
        """Close the connections."""
        self.give_up()
        self._engine.dispose()

    def _patiently(self, work: Callable[[], Result]) -> Result:
        give_up, pause = None, _FIRST_PAUSE_SECONDS
        with self._translated():
            while True:
                try:
                    return work()
                except exc.DBAPIError as error:
                    now = time.monotonic()
                    give_up = give_up or now + self._patience
                    if not _is_temporary(error) or now + pause > give_up:
                        raise
                    _log.warning("The store %s does not answer (%s): trying again.", self.url, _reason(error))
                    if self._closing.wait(pause):
                        raise
                    pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause)

    def _create_tables(self) -> None:
        with self._engine.execution_options(writes=True).begin() as connection:
            if self.dialect == "postgresql":
                # IF NOT EXISTS does not help against another stage that creates the same table at the same time.
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            for table in METADATA.sorted_tables:
                connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
                for index in table.indexes:
                    connection.execute(sa.schema.CreateIndex(index, if_not_exists=True))

    def _check_tables(self) -> None:
        """Raise StoreError if no stage wrote a table of facts, or if it lacks a column."""
        if self.dialect == "sqlite":
            with self._engine.connect() as connection:
                check_foreign(connection, str(self.url))
        inspector = sa.inspect(self._engine)
        for table in METADATA.sorted_tables:
            present = inspector.get_columns(table.name) if inspector.has_table(table.name) else []
            if not {column["name"] for column in present} >= set(table.columns.keys()):
                raise StoreError(
                    f"The store {self.url} lacks the table {table.name!r} or a column of it, so this version did not "
                    "write it: name another store."
                )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, ModuleNotFoundError, OSError) as error:
            if isinstance(error, RetroformerError):
                raise  # It is of an import: the transaction has read its facts from a file.
            reason = _reason(error)
            raise StoreError(f"The store {self.url} cannot be used ({reason}): {_hint(reason)}.") from error


def insert_into(table: sa.Table, connection: sa.Connection) -> "postgresql.Insert | sqlite.Insert":
    """Return an INSERT of the dialect, which supports ON CONFLICT clauses."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def parse_url(url: SecretUrl) -> sa.URL:
    """Parse the address of a store. Raises StoreError, whose message never contains the password."""
    secret = url.secret_url()
    scheme, slashes, rest = secret.partition("://")
    if rest.partition("/")[0].count("@") > 1:
        raise StoreError("The address of the store has a password with an @ in it: write that as %40.")
    if not slashes or scheme.partition("+")[0] not in _DATABASES or "://" in rest.partition("?")[0]:
        raise StoreError(
            f"A store is an SQLite file or a PostgreSQL database, not {url}: name it as in sqlite:///runs/my.db or "
            "postgresql+psycopg://user@host/name. `retroformer push` and `pull` copy adapters and ratings to and from "
            "a bucket."
        )
    try:
        parsed = sa.make_url(secret)
    except ValueError:
        raise StoreError(f"The address of the store {url} cannot be read: check its port.") from None
    if parsed.get_backend_name() == "sqlite":
        # SQLAlchemy 2.0 leaves the marks of a path as they are written, 2.1 reads them.
        parsed = parsed.set(database=unquote(rest.partition("?")[0]).removeprefix("/"))
    in_memory = not parsed.database or ":memory:" in parsed.database or parsed.database.startswith("file:")
    if parsed.get_backend_name() == "sqlite" and in_memory:
        raise StoreError(
            f"The store {url} names no file, so nothing would be kept: name one, as in sqlite:///runs/my.db."
        )
    return parsed


def _for_reading(parsed: sa.URL) -> sa.URL:
    """Return the address by which SQLite opens a file without changing it, also in a folder that allows no change."""
    if parsed.get_backend_name() != "sqlite":
        return parsed
    path = Path(str(parsed.database)).absolute()
    # Readers of a file with a write-ahead log share a -shm file beside it, which cannot be made there.
    alone = not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()
    query = {"mode": "ro", "uri": "true"} | ({"immutable": "1"} if alone else {})
    return sa.URL.create("sqlite", database=f"file:{quote(str(path))}", query=query)


def _is_temporary(error: exc.DBAPIError) -> bool:
    """Return True if the same transaction may succeed a little later."""
    state = getattr(error.orig, "sqlstate", None)
    if state:
        return str(state).startswith(_TEMPORARY_STATES)
    words = str(error.orig).lower()
    return error.connection_invalidated or any(temporary in words for temporary in _TEMPORARY_WORDS)


def _inodes(file: Path | None) -> list[int | None]:
    """Return the inodes of a SQLite file, of its write-ahead log, which holds the latest facts, and of its locks."""
    inodes = list[int | None]()
    for suffix in ("", "-wal", "-shm") if file is not None else ():
        with suppress(FileNotFoundError):
            inodes.append(Path(f"{file}{suffix}").stat().st_ino)
    return inodes


def _reason(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())


def _hint(reason: str) -> str:
    if "full" in reason or "No space" in reason:
        return "free some space and run again"
    if "too big" in reason:
        return f"a fact in it is longer than {size(LONGEST_FACT_BYTES)}, so it was not written by Retroformer"
    if "malformed" in reason or "not a database" in reason or "corrupt" in reason:
        return (
            "the file is damaged; restore a copy of it, or save its readable facts into a new file with "
            "`retroformer recover EXPERIMENT.yaml`"
        )
    return "check that it can be reached and written and run again"


def _set_up_reader(connection: Any, _: object) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_FACT_BYTES)


def _set_up_writer(connection: Any, _: object) -> None:
    try:
        _write_ahead(connection)
    except BaseException:
        connection.close()  # The pool does not know it yet, so it would stay open.
        raise


def _write_ahead(connection: Any) -> None:
    # WAL lets readers read while a stage writes, and a killed process loses nothing that was committed. SQLite does not
    # wait for a lock when it switches to WAL, so one of two stages that open a new store at once would fail.
    give_up = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads first and writes later fails if another one has written in between. A writer therefore
    # takes the lock at the beginning, and waits for it.
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
