"""Checksums of facts: what a disk or a program has changed is noticed before it is trained on or reported.

They detect damage, not malice: whoever can write to a store can also compute them. A deleted row is not detected.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import sqlalchemy as sa

from retroformer.errors import StoreError
from retroformer.files.canonical import sha256_of
from retroformer.store.database import Database
from retroformer.store.schema import (
    ACCOUNTS,
    ARMS,
    CHECKSUM,
    CONDITIONS,
    INVALIDS,
    KEY,
    REFLECTIONS,
    TRAJECTORIES,
    UNDECLARED,
    USAGE,
)

_FACTS = (TRAJECTORIES, REFLECTIONS, INVALIDS)
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
    """Read all facts of an experiment once. Raises StoreError if some differ from what was stored.

    It takes about a second for each 100 MB.
    """
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
    for table in _FACTS:
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
    """Compare the conditions of the arms, by hash, with those of their facts."""
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
