"""Saves what is readable of a damaged SQLite store into a new file."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa
from pydantic import ValidationError

from retroformer.errors import ConfigError, MissingInput, StoreError
from retroformer.records import Reflection, Trajectory
from retroformer.store.database import Database
from retroformer.store.schema import ARMS, CONDITIONS, INVALIDS, REFLECTIONS, TRAJECTORIES
from retroformer.store.upgrade import fill_accounts

_SMALLEST_ROW_BYTES = 100
"""Bounds the number of rows in a file; where rows cannot be read, the search goes on behind them up to that."""
_ROWS_AT_ONCE = 500


class Recovered(NamedTuple):
    """How many facts could be read."""

    trajectories: int
    reflections: int
    path: Path


def recover(url: str) -> Recovered:
    """Copy every readable fact of the SQLite file at `url` into a new file beside it, and leave the old one alone.

    Raises:
        ConfigError: the store is not a SQLite file.
        MissingInput: there is no such file.
        StoreError: nothing in it can be read, or the new file is there already.
    """
    parsed = sa.make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise ConfigError("Only a SQLite store is one file that can be recovered: use the backups of your server.")
    damaged = Path(parsed.database)
    if not damaged.is_file():
        raise MissingInput(f"No store at {damaged}: nothing to recover.")
    saved = damaged.with_name(f"{damaged.stem}.recovered{damaged.suffix}")
    if saved.exists():
        raise StoreError(f"{saved} is there already: move it away and run again.")
    counts = _copy(damaged, saved)
    if not counts["trajectories"] + counts["reflections"]:
        saved.unlink()
        raise StoreError(f"Nothing in {damaged} can be read: restore a copy of it.")
    return Recovered(counts["trajectories"], counts["reflections"], saved)


def _copy(damaged: Path, saved: Path) -> dict[str, int]:
    database, counts = Database(f"sqlite:///{saved}"), dict[str, int]()
    try:
        with closing(sqlite3.connect(f"file:{damaged}?mode=ro", uri=True)) as source:
            source.row_factory = sqlite3.Row
            for table in (CONDITIONS, ARMS, TRAJECTORIES, REFLECTIONS, INVALIDS):
                counts[table.name] = 0
                for rows in _readable(source, table.name, 2 + damaged.stat().st_size // _SMALLEST_ROW_BYTES):
                    whole = [dict(row) for row in rows if _is_whole(table, row)]
                    counts[table.name] += _insert(database, table, whole)
        database.write(fill_accounts)
    finally:
        database.close()
    return counts


def _readable(source: sqlite3.Connection, table: str, most: int) -> Iterator[list[sqlite3.Row]]:
    """Rows of a table in the order of their numbers, which are below `most`, without those that cannot be read."""
    ranges = [(0, most)]
    while ranges:
        low, high = ranges.pop()
        query = f"select rowid as rowid_, * from {table} where rowid >= ? and rowid < ? order by rowid limit ?"
        try:
            rows = source.execute(query, (low, high, _ROWS_AT_ONCE)).fetchall()
        except sqlite3.DatabaseError:
            if high - low > 1:
                middle = (low + high) // 2
                ranges += [(middle, high), (low, middle)]
            continue
        if rows:
            yield rows
        if len(rows) == _ROWS_AT_ONCE:
            ranges.append((rows[-1]["rowid_"] + 1, high))


def _is_whole(table: sa.Table, row: sqlite3.Row) -> bool:
    """Whether all columns are there, and the record is one."""
    if any(row[column.name] is None for column in table.columns if not column.nullable):
        return False
    try:
        if table is TRAJECTORIES:
            Trajectory.model_validate_json(row["record"])
        elif table is REFLECTIONS:
            Reflection.model_validate_json(row["record"])
    except ValidationError:
        return False
    return True


def _insert(database: Database, table: sa.Table, rows: list[dict[str, object]]) -> int:
    values = [{column.name: row[column.name] for column in table.columns} for row in rows]
    if values:
        database.write(lambda connection: connection.execute(table.insert().prefix_with("OR IGNORE"), values))
    return len(values)
