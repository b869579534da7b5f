"""SQLite files that are built once on a machine and read by every process."""

import os
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from retroformer.files import durable
from retroformer.files.held_lock import held_lock

_BUILD_SECONDS = 3 * 3600.0
"""Time for which other processes wait for the builder; the shop of 1.18 million products takes a quarter of an hour."""


def build_once(path: Path, write: Callable[[sqlite3.Connection], None]) -> Path:
    """Call `write` to fill the database at `path` unless the file exists. One process builds it, the others wait.

    The file appears complete or not at all.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with held_lock(path.with_name(path.name + ".lock"), f"building {path}", _BUILD_SECONDS):
        if not path.exists():
            handle, scratch = tempfile.mkstemp(prefix=path.name, suffix=".partial", dir=path.parent)
            os.close(handle)
            try:
                with closing(sqlite3.connect(scratch)) as database:
                    database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
                    write(database)
                    database.commit()
                durable.rename(Path(scratch), path)
            finally:
                Path(scratch).unlink(missing_ok=True)
    return path


def open_built(path: Path) -> sqlite3.Connection:
    """Open a finished file read-only."""
    address = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=ro&immutable=1"
    return sqlite3.connect(address, uri=True, check_same_thread=False)
