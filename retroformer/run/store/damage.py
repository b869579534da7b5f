"""Checksums of facts: what a disk or a program has changed is noticed before it is trained on or reported.

They detect damage, not malice: whoever can write to a store can also compute them. A deleted row is not detected.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from retroformer.endpoint.secrets.url import SecretUrl, sqlite_url
from retroformer.errors import ConfigError, MissingInput, StoreError
from retroformer.files import durable
from retroformer.files.text import sha256_of
from retroformer.method.records import Reflection, Trajectory
from retroformer.run.store.database import Database, parse_url
from retroformer.run.store.schema import (
    ACCOUNTS,
    ARMS,
    CHECKSUM,
    CONDITIONS,
    FACTS,
    INVALIDS,
    KEY,
    REFLECTIONS,
    TRAJECTORIES,
    UNDECLARED,
    USAGE,
)

_NUMBER = "id"
"""Column that the database fills, so no checksum covers it."""


def checksum(row: Mapping[str, Any]) -> str:
    """Return the hexadecimal sha256 of a fact's columns."""
    # Databases and drivers differ in whether a truth value or a whole number comes back as what it went in as.
    return sha256_of(
        {
            name: float(value) if isinstance(value, int | float) else value
            for name, value in row.items()
            if name not in (CHECKSUM, _NUMBER)
        }
    )


def check_facts(database: Database, experiment: str) -> None:
    """Read all facts of an experiment once, 100 MB a second. Raises StoreError if some are not what was stored."""
    for fault in _faults(database, experiment):
        raise StoreError(
            f"The store {database.url} is damaged ({fault}): restore a copy of it, or save its undamaged facts into a "
            "new file with `retroformer recover EXPERIMENT.yaml`."
        )


def _faults(database: Database, experiment: str) -> Iterator[str]:
    if database.dialect == "sqlite":
        # It compares the indexes, from which returns and counts are read, with the tables.
        (first,) = database.read(lambda connection: connection.exec_driver_sql("PRAGMA integrity_check(1)").one())
        if first != "ok":
            yield " ".join(str(first).split())
    conditions, spent = set[tuple[str, str]](), dict[str, list[float]]()
    for table in FACTS:
        for row in database.stream(sa.select(table).where(_of(table, experiment))):
            fact = row._asdict()
            if fact[CHECKSUM] != checksum(fact):
                key = ", ".join(f"{name} {fact[name]!r}" for name in KEY)
                yield f"the row of {key} in {table.name} is not what was stored"
            if table is not INVALIDS:
                conditions.add((fact["arm"], fact["conditions_sha256"]))
            sums = spent.setdefault(fact["arm"], [0.0] * len(USAGE))
            spent[fact["arm"]] = [total + fact[name] for total, name in zip(sums, USAGE, strict=True)]
    # Another stage may add facts meanwhile. What they are bound and charged to is therefore read after them.
    yield from _faults_of_conditions(database, experiment, conditions)
    yield from _faults_of_accounts(database, experiment, spent)


def _faults_of_conditions(database: Database, experiment: str, used: Set[tuple[str, str]]) -> Iterator[str]:
    bound = dict(_rows(database, sa.select(ARMS.c.arm, ARMS.c.conditions_sha256).where(_of(ARMS, experiment))))
    for arm, sha256 in sorted(used):
        if bound.get(arm) != sha256:
            yield f"the arm {arm!r} is bound to other conditions than those of its facts"
    for sha256, record in _rows(database, sa.select(CONDITIONS.c.sha256, CONDITIONS.c.record)):
        if sha256 not in (UNDECLARED, hashlib.sha256(record.encode()).hexdigest()):
            yield "conditions of an arm are not what was stored"


def _faults_of_accounts(database: Database, experiment: str, spent: Mapping[str, list[float]]) -> Iterator[str]:
    """Compare the accounts with the facts. They may hold more, as calls without a fact are charged, too."""
    accounts = sa.select(ACCOUNTS.c.arm, *(ACCOUNTS.c[name] for name in USAGE)).where(_of(ACCOUNTS, experiment))
    charged = {arm: used for arm, *used in _rows(database, accounts)}
    for arm, sums in spent.items():
        rounding = 1e-6 * sums[-1]
        if any(total < least - rounding for total, least in zip(charged.get(arm, [0] * len(USAGE)), sums, strict=True)):
            yield f"the account of {arm!r} is smaller than what its facts have used"


def _rows(database: Database, query: sa.Select[Any]) -> Sequence[tuple[Any, ...]]:
    return [tuple(row) for row in database.read(lambda connection: connection.execute(query).all())]


def _of(table: sa.Table, experiment: str) -> sa.ColumnElement[bool]:
    return table.c.experiment == experiment


_SMALLEST_ROW_BYTES = 100
"""Lower bound of a row's size. It bounds the row numbers of a file, up to which the search continues past unreadable
rows."""
_ROWS_AT_ONCE = 500
_ROW_NUMBER = "rowid_"
_RECOVERED_TABLES = (CONDITIONS.name, ARMS.name, TRAJECTORIES.name, REFLECTIONS.name, INVALIDS.name)


class Recovery(NamedTuple):
    """Numbers of recovered facts, and the new file."""

    trajectories: int
    reflections: int
    lost: int
    """Lower bound of the number of lost facts: rows after the last readable one of a table are unknown."""
    path: Path


def recover(url: str | SecretUrl) -> Recovery:
    """Copy every readable fact of the SQLite file at `url` into a new file beside it. The old file is not changed.

    Raises ConfigError if `url` names a server, MissingInput if there is no file, and StoreError if nothing in it can be
    read, or the new file exists or cannot be written.
    """
    parsed = parse_url(SecretUrl(url))
    if parsed.get_backend_name() != "sqlite":
        raise ConfigError("Only a SQLite store is one file that can be recovered: use the backups of your server.")
    damaged = Path(str(parsed.database))
    if not damaged.is_file():
        raise MissingInput(f"No store at {damaged}: nothing to recover.")
    saved = damaged.with_name(f"{damaged.stem}.recovered{damaged.suffix}")
    if saved.exists():
        raise StoreError(f"{saved} exists already: move it away and run again.")
    # Every run uses the same name, so that it removes what a killed run has left.
    unfinished = damaged.with_name(f".{saved.name}.unfinished")
    _remove(unfinished)
    try:
        counts, lost = _copy(damaged, unfinished)
        if not counts["trajectories"] + counts["reflections"]:
            raise StoreError(f"Nothing in {damaged} can be read: restore a copy of it.")
        # Create the missing tables, and fill those that are derived from the facts.
        with closing(Database(sqlite_url(unfinished))) as database:
            database.write(_fill)
        durable.rename(unfinished, saved)
    except sqlite3.Error as error:
        raise StoreError(f"{saved} cannot be written ({error}): check the disk and run again.") from error
    finally:
        _remove(unfinished)
    return Recovery(counts["trajectories"], counts["reflections"], lost, saved)


def _remove(database: Path) -> None:
    """Remove a SQLite file and its journals, which SQLite would apply to the next file with this name."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)


def _copy(damaged: Path, target: Path) -> tuple[dict[str, int], int]:
    """Copy readable rows into tables with the damaged file's definitions.

    Returns their number by table, and the number of facts that are missing before the last readable ones.
    """
    counts, lost = dict.fromkeys(_RECOVERED_TABLES, 0), 0
    address = f"{damaged.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True)) as source, closing(sqlite3.connect(target)) as copy:
        source.row_factory = sqlite3.Row
        for table, definition in _definitions(source).items():
            copy.execute(definition)
            before, last = copy.total_changes, 0
            for rows in _readable(source, table, 2 + damaged.stat().st_size // _SMALLEST_ROW_BYTES):
                values = [tuple(row)[1:] for row in rows if _is_whole(table, row)]
                places = ", ".join("?" * (len(rows[0]) - 1))
                # IGNORE skips rows that lack a required value.
                copy.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({places})", values)
                last = rows[-1][_ROW_NUMBER]
            counts[table] = copy.total_changes - before
            # Rows of facts are numbered from 1 without gaps, as none is ever deleted.
            lost += last - counts[table] if any(table == facts.name for facts in FACTS) else 0
        copy.commit()
    return counts, lost


def _definitions(source: sqlite3.Connection) -> dict[str, str]:
    """Return the CREATE statements of the file's tables by name; empty if their list cannot be read."""
    try:
        statements = dict(source.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    except sqlite3.DatabaseError:
        return {}
    return {table: statements[table] for table in _RECOVERED_TABLES if table in statements}


def _fill(connection: sa.Connection) -> None:
    """Bind each unbound arm to the conditions of its facts, and charge all usage to the empty accounts."""
    facts = sa.union(*(sa.select(t.c.experiment, t.c.arm, t.c.conditions_sha256) for t in (TRAJECTORIES, REFLECTIONS)))
    arms = facts.subquery()
    bound = sa.exists().where(ARMS.c.experiment == arms.c.experiment, ARMS.c.arm == arms.c.arm)
    names = (arms.c.experiment, arms.c.arm)
    unbound = sa.select(*names, sa.func.min(arms.c.conditions_sha256)).where(~bound).group_by(*names)
    connection.execute(ARMS.insert().from_select(["experiment", "arm", "conditions_sha256"], unbound))
    columns = ("experiment", "arm", *USAGE)
    consumed = sa.union_all(*(sa.select(*(table.c[name] for name in columns)) for table in FACTS)).subquery()
    keys, sums = [consumed.c.experiment, consumed.c.arm], [sa.func.sum(consumed.c[name]) for name in USAGE]
    connection.execute(ACCOUNTS.insert().from_select(columns, sa.select(*keys, *sums).group_by(*keys)))


def _readable(source: sqlite3.Connection, table: str, most: int) -> Iterator[list[sqlite3.Row]]:
    """Yield the readable rows of a table in the order of their row numbers, which are below `most`."""
    ranges = [(0, most)]
    while ranges:
        low, high = ranges.pop()
        query = f"select rowid as {_ROW_NUMBER}, * from {table} where rowid >= ? and rowid < ? order by rowid limit ?"
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
            ranges.append((rows[-1][_ROW_NUMBER] + 1, high))


def _is_whole(table: str, row: sqlite3.Row) -> bool:
    """Return True if a row is what was stored, as far as its checksum or its JSON tells."""
    try:
        # A row itself iterates over its values.
        columns = {name: row[name] for name in row.keys() if name != _ROW_NUMBER}  # noqa: SIM118
        if CHECKSUM in columns and columns[CHECKSUM] != checksum(columns):
            return False
        if table == TRAJECTORIES.name:
            Trajectory.model_validate_json(row["record"])
        elif table == REFLECTIONS.name:
            Reflection.model_validate_json(row["record"])
        elif table == CONDITIONS.name:
            json.loads(row["record"])
    except (ValueError, TypeError, IndexError):
        return False
    return True
