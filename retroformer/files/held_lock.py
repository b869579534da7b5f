"""A lock on a file, which the system releases when the process ends, however it ends."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from retroformer.errors import ServiceError


@contextmanager
def held_lock(path: Path, doing: str, wait_seconds: float = 0.0) -> Iterator[None]:
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
