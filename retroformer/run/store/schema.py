"""Tables of the store. Queries use the columns of facts; `record` holds the whole fact as JSON."""

from typing import Any

import sqlalchemy as sa

from retroformer.errors import StoreError

METADATA = sa.MetaData()

KEY = ("arm", "task_id", "trial", "candidate", "repeat")
"""Columns of a fact's natural key within its experiment."""

USAGE = ("calls", "prompt_tokens", "completion_tokens", "dollars")

CHECKSUM = "checksum"
"""Column with the hash of the rest of the row."""

LONGEST_FACT_BYTES = 64 << 20
"""Longest fact, with all columns of its row: what is longer is neither written nor read."""

UNDECLARED = "0" * 64
"""Hash stored for facts without declared conditions."""

# PostgreSQL sorts by locale, SQLite by bytes. With collation C, facts come in the same order from both.
_NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def _key_columns(*, primary: bool) -> list[sa.Column[Any]]:
    names = [sa.Column(name, _NAME, primary_key=primary, nullable=False) for name in ("experiment", "arm", "task_id")]
    numbers = [sa.Column(name, sa.Integer, primary_key=primary, nullable=False) for name in KEY[2:]]
    return [*names, *numbers]


def _usage_columns() -> list[sa.Column[Any]]:
    counts = [sa.Column(name, sa.BigInteger, nullable=False, server_default="0") for name in USAGE[:3]]
    return [*counts, sa.Column("dollars", sa.Float, nullable=False, server_default="0")]


def _last_columns(*, record: bool) -> list[sa.Column[Any]]:
    """Return the columns that every fact has beside its own; an invalid attempt has no record."""
    return [
        *_usage_columns(),
        sa.Column("conditions_sha256", sa.String, nullable=False, server_default=UNDECLARED),
        *([sa.Column("record", sa.Text, nullable=False)] if record else []),
        sa.Column("stored_at", sa.String, nullable=False),
        sa.Column(CHECKSUM, sa.String),
    ]


TRAJECTORIES = sa.Table(
    "trajectories",
    METADATA,
    *_key_columns(primary=True),
    sa.Column("split", sa.String, nullable=False),
    sa.Column("outcome", sa.String, nullable=False),
    sa.Column("ending", sa.String, nullable=False),
    sa.Column("judged", sa.Boolean),
    sa.Column("episode_return", sa.Float, nullable=False),
    sa.Column("actions", sa.Integer, nullable=False),
    *_last_columns(record=True),
)
REFLECTIONS = sa.Table(
    "reflections",
    METADATA,
    *_key_columns(primary=True),
    sa.Column("previous_candidate", sa.Integer, nullable=False),
    sa.Column("text", sa.String, nullable=False),
    sa.Column("model", sa.String, nullable=False),
    sa.Column("adapter_sha256", sa.String),
    *_last_columns(record=True),
)
INVALIDS = sa.Table(
    "invalids",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    *_key_columns(primary=False),
    sa.Column("cause", sa.String, nullable=False),
    *_last_columns(record=False),
)
FACTS = (TRAJECTORIES, REFLECTIONS, INVALIDS)
CONDITIONS = sa.Table(
    "condition_records",
    METADATA,
    sa.Column("sha256", sa.String, primary_key=True),
    sa.Column("record", sa.Text, nullable=False),
)
ARMS = sa.Table(
    "arms",
    METADATA,
    sa.Column("experiment", _NAME, primary_key=True),
    sa.Column("arm", _NAME, primary_key=True),
    sa.Column("conditions_sha256", sa.String, nullable=False),
)
"""Conditions of the first fact of each arm; all later facts must have the same."""
ACCOUNTS = sa.Table(
    "accounts",
    METADATA,
    sa.Column("experiment", _NAME, primary_key=True),
    sa.Column("arm", _NAME, primary_key=True),
    *_usage_columns(),
)
"""Usage of each arm, summed over all processes that write; the budget is checked against it."""
LEASES = sa.Table(
    "leases",
    METADATA,
    sa.Column("experiment", _NAME, primary_key=True),
    sa.Column("arm", _NAME, primary_key=True),
    sa.Column("task_id", _NAME, primary_key=True),
    sa.Column("owner", sa.String),
    sa.Column("expires_at", sa.Float, nullable=False),
)
"""Process that works on a task of an arm; the row is deleted when the work is done."""
MARKS = sa.Table(
    "marks",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    sa.Column("experiment", _NAME, nullable=False, index=True),
    sa.Column("arm", _NAME, nullable=False),
    sa.Column("task_id", _NAME, nullable=False),
    sa.Column("verdict", sa.String, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("marked_at", sa.String, nullable=False),
)
"""What people say of stories; the latest mark of a story counts."""

# Queries on returns and counts read these indexes alone, not the wide rows.
sa.Index(
    "trajectory_columns",
    *(TRAJECTORIES.c[name] for name in ("experiment", *KEY)),
    TRAJECTORIES.c.episode_return,
    TRAJECTORIES.c.outcome,
    TRAJECTORIES.c.judged,
    TRAJECTORIES.c.ending,
    TRAJECTORIES.c.actions,
    TRAJECTORIES.c.conditions_sha256,
    TRAJECTORIES.c[CHECKSUM],
)
sa.Index(
    "reflection_columns",
    *(REFLECTIONS.c[name] for name in ("experiment", *KEY)),
    REFLECTIONS.c.previous_candidate,
    REFLECTIONS.c.conditions_sha256,
    REFLECTIONS.c[CHECKSUM],
)
sa.Index("invalids_by_arm", INVALIDS.c.experiment, INVALIDS.c.arm)


def check_foreign(connection: sa.Connection, name: str) -> None:
    """Check the tables of a file that is named `name`. Raises StoreError if a stage cannot have written it."""
    for table in METADATA.sorted_tables:
        if fault := _definition_fault(connection, table.name) or _type_fault(connection, table):
            raise StoreError(
                f"The store {name} was not written by Retroformer ({fault}): get a copy from where it was made."
            )


def _definition_fault(connection: sa.Connection, table: str) -> str:
    """Return what is wrong with the definition of a table; empty for an ordinary or a missing one."""
    query = sa.text("SELECT type, name, sql FROM sqlite_master WHERE name = :table OR tbl_name = :table")
    for kind, name, sql in connection.execute(query, {"table": table}).all():
        if kind in ("view", "trigger"):
            return f"{name} is a {kind}"
        if kind == "table" and str(sql).upper().startswith("CREATE VIRTUAL"):
            return f"{name} is a virtual table"
    columns = connection.execute(sa.text(f"PRAGMA table_xinfo({table})")).mappings().all()
    computed = [column["name"] for column in columns if column["hidden"]]
    return f"{table}.{computed[0]} is computed" if computed else ""


def _type_fault(connection: sa.Connection, table: sa.Table) -> str:
    """Return which column holds a value of another type than a stage writes; empty if none does."""
    present = {row[1] for row in connection.execute(sa.text(f"PRAGMA table_info({table.name})"))}
    if table in (TRAJECTORIES, REFLECTIONS):  # Their rows are wide, so only what an index holds is checked.
        present &= {column.name for index in table.indexes for column in index.columns}
    columns = [column for column in table.columns if column.name in present]
    if not columns:
        return ""
    wrong = [sa.func.typeof(column).not_in(_types(column)) for column in columns]
    query = sa.select(*wrong).select_from(table).where(sa.or_(*wrong)).limit(1)
    row = connection.execute(query).first()
    if row is None:
        return ""
    name = next(column.name for column, is_wrong in zip(columns, row, strict=True) if is_wrong)
    return f"{table.name}.{name} holds a value of another type"


def _types(column: sa.Column[object]) -> list[str]:
    """Return the names that SQLite gives to the types of a column's values."""
    if isinstance(column.type, sa.Integer | sa.Boolean):
        names = ["integer"]
    elif isinstance(column.type, sa.Float):
        names = ["real", "integer"]
    else:
        names = ["text"]
    return [*names, "null"] if column.nullable else names
