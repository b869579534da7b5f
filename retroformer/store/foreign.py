"""Checks of a SQLite file before it is read: it may come from a stranger, and SQLite runs what a schema defines.

A view in place of a table may compute forever, and a column may hold values of any type. Columns that no index covers
are not checked here, since that would read the whole file: whoever parses them raises StoreError.
"""

import sqlalchemy as sa

from retroformer.errors import StoreError
from retroformer.store.schema import METADATA, REFLECTIONS, TRAJECTORIES

_WIDE = (TRAJECTORIES, REFLECTIONS)
"""Tables of which only the columns in an index are checked."""


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
    indexed = {column.name for index in table.indexes for column in index.columns} if table in _WIDE else present
    columns = [column for column in table.columns if column.name in present & indexed]
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
