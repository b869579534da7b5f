"""Upgrades a store of an earlier version: adds the columns that it lacks, and fills those of 0.1.0 from the facts.

The facts of version 0.1.0 keep their old conditions, which record settings but no content hashes. They can be read,
trained on, reported and exported; a stage that would add facts to such an arm is refused with a request for another run
name.
"""

from typing import Any

import sqlalchemy as sa

from retroformer.files.canonical import canonical_json, sha256_of
from retroformer.store.schema import ACCOUNTS, ARMS, CHECKSUM, CONDITIONS, INVALIDS, REFLECTIONS, TRAJECTORIES, USAGE

EARLIER = "earlier_version"
"""Only key in the conditions of facts stored by version 0.1.0; its value holds the settings of that version."""


def upgrade(connection: sa.Connection) -> None:
    """Upgrade the tables of earlier versions; leave current or missing tables unchanged."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(TRAJECTORIES.name):
        return
    before = {column["name"] for column in inspector.get_columns(TRAJECTORIES.name)}
    if CHECKSUM in before:
        return
    for table in (TRAJECTORIES, REFLECTIONS, INVALIDS):
        _add_columns(connection, table, {column["name"] for column in inspector.get_columns(table.name)})
    if "conditions_sha256" not in before:
        _fill_first_version(connection)


def _fill_first_version(connection: sa.Connection) -> None:
    """Fill the columns that version 0.1.0 lacks from its facts."""
    usage = {name: _inside("record", connection, "usage", name) for name in USAGE}
    for table in (TRAJECTORIES, REFLECTIONS):
        connection.execute(sa.text(f"UPDATE {table.name} SET {_assignments(usage)}"))
    judged = _inside("record", connection, "judged")
    connection.execute(sa.text(f"UPDATE trajectories SET judged = {_as_boolean(judged, connection)}"))
    spoiled = {name: _inside("usage", connection, name) for name in USAGE}
    connection.execute(sa.text(f"UPDATE invalids SET {_assignments(spoiled)}"))
    connection.execute(sa.text("ALTER TABLE invalids DROP COLUMN usage"))
    if connection.dialect.name == "postgresql":
        for table in (TRAJECTORIES, REFLECTIONS):
            connection.execute(sa.text(f"ALTER TABLE {table.name} ALTER COLUMN record TYPE TEXT USING record::text"))
    for table in (CONDITIONS, ARMS, ACCOUNTS):
        connection.execute(sa.schema.CreateTable(table, if_not_exists=True))
    _keep_conditions(connection)
    fill_accounts(connection)


def _add_columns(connection: sa.Connection, table: sa.Table, present: set[str]) -> None:
    for column in table.columns:
        if column.name not in present:
            definition = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
            connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {definition}"))


def _inside(column: str, connection: sa.Connection, *path: str) -> str:
    """Return SQL for a value inside the JSON of a column."""
    if connection.dialect.name == "sqlite":
        return f"json_extract({column}, '$.{'.'.join(path)}')"
    return f"({column}::json #>> '{{{','.join(path)}}}')"


def _as_boolean(value: str, connection: sa.Connection) -> str:
    return value if connection.dialect.name == "sqlite" else f"{value}::boolean"


def _assignments(values: dict[str, str]) -> str:
    kinds = {"dollars": "FLOAT"}
    return ", ".join(f"{name} = CAST({value} AS {kinds.get(name, 'BIGINT')})" for name, value in values.items())


def _keep_conditions(connection: sa.Connection) -> None:
    """Move the conditions of each arm into the current tables, and write their hash on the arm's facts."""
    if sa.inspect(connection).has_table("conditions"):
        columns = [sa.column("experiment"), sa.column("arm"), sa.column("record", sa.JSON)]
        for experiment, arm, record in connection.execute(
            sa.select(*columns).select_from(sa.table("conditions"))
        ).all():
            kept: dict[str, Any] = {EARLIER: record}
            sha256 = sha256_of(kept)
            if not connection.execute(sa.select(CONDITIONS.c.sha256).where(CONDITIONS.c.sha256 == sha256)).first():
                connection.execute(CONDITIONS.insert().values(sha256=sha256, record=canonical_json(kept)))
            for table in (TRAJECTORIES, REFLECTIONS, INVALIDS):
                mine = (table.c.experiment == experiment) & (table.c.arm == arm)
                connection.execute(table.update().where(mine).values(conditions_sha256=sha256))
        connection.execute(sa.text("DROP TABLE conditions"))
    fill_arms(connection)


def fill_arms(connection: sa.Connection) -> None:
    """Bind every unbound arm that has facts to the conditions of its facts."""
    facts = sa.union(*(sa.select(t.c.experiment, t.c.arm, t.c.conditions_sha256) for t in (TRAJECTORIES, REFLECTIONS)))
    arms = facts.subquery()
    bound = sa.exists().where(ARMS.c.experiment == arms.c.experiment, ARMS.c.arm == arms.c.arm)
    unbound = (
        sa.select(arms.c.experiment, arms.c.arm, sa.func.min(arms.c.conditions_sha256))
        .where(~bound)
        .group_by(arms.c.experiment, arms.c.arm)
    )
    connection.execute(ARMS.insert().from_select(["experiment", "arm", "conditions_sha256"], unbound))


def fill_accounts(connection: sa.Connection) -> None:
    """Fill the accounts, which must be empty, with the usage of every arm's facts."""
    consumed = sa.union_all(
        *(
            sa.select(table.c.experiment, table.c.arm, *(table.c[name] for name in USAGE))
            for table in (TRAJECTORIES, REFLECTIONS, INVALIDS)
        )
    ).subquery()
    sums = [sa.func.sum(consumed.c[name]) for name in USAGE]
    totals = sa.select(consumed.c.experiment, consumed.c.arm, *sums).group_by(consumed.c.experiment, consumed.c.arm)
    connection.execute(ACCOUNTS.insert().from_select(["experiment", "arm", *USAGE], totals))
