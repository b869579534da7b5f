"""Files that all processes of a machine share: the cache folder, locks, and SQLite files that are built once."""

import hashlib
import os
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from retroformer.errors import ServiceError
from retroformer.files import durable


def cache_folder() -> Path:
    """Return $RETROFORMER_CACHE, or ~/.cache/retroformer. It may not exist yet."""
    folder = os.environ.get("RETROFORMER_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "retroformer"


def key_of(paths: Iterable[Path]) -> str:
    """Return a short hash that changes when one of these files is replaced or written. Raises OSError."""
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        # Unlike the time of the last write, that of the last change is set by no program.
        digest.update(repr((str(path.resolve()), status.st_size, status.st_ctime_ns)).encode())
    return digest.hexdigest()[:16]


@contextmanager
def hold_lock(path: Path, doing: str, wait_seconds: float = 0.0) -> Iterator[None]:
    """Hold the lock for the duration of the block. Raises ServiceError if another process holds it for so long.

    `doing` completes the sentence "Another process is ...".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A transaction is such a lock on every system.
    with closing(sqlite3.connect(path, timeout=wait_seconds, isolation_level=None)) as database:
        try:
            database.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            raise ServiceError(
                f"Another process is {doing} (it holds {path}): wait for its end, or end it, and run the same command "
                "again."
            ) from None
        yield


_BUILD_SECONDS = 3 * 3600.0
"""Time for which other processes wait for the builder; the shop of 1.18 million products takes a quarter of an hour."""


def build_once(path: Path, write: Callable[[sqlite3.Connection], None]) -> Path:
    """Call `write` to fill the database at `path` unless the file exists. One process builds it, the others wait.

    The file appears complete or not at all.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(path.with_name(path.name + ".lock"), f"building {path}", _BUILD_SECONDS):
        if not path.exists():
            with durable.replace_file(path) as scratch, closing(sqlite3.connect(scratch)) as database:
                database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
                write(database)
                database.commit()
    return path


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a finished file read-only."""
    address = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=ro&immutable=1"
    return sqlite3.connect(address, uri=True, check_same_thread=False)
