"""Marks as a Parquet file, `marks.parquet`, beside the exported facts of a run."""

from pathlib import Path

from pydantic import ValidationError

from retroformer.errors import ConfigError
from retroformer.files.durable import replacing
from retroformer.secrets.redaction import redacted
from retroformer.store import Store
from retroformer.store.marks import Mark

NAME = "marks.parquet"


def export_marks(store: Store, folder: Path) -> int:
    """Write all marks of a run, one a row, and return their number; without any, the file is removed."""
    import pyarrow
    import pyarrow.parquet

    marks = store.marks.history()
    if not marks:
        (folder / NAME).unlink(missing_ok=True)
        return 0
    schema = pyarrow.schema(
        [
            *((name, pyarrow.string()) for name in ("arm", "task_id", "verdict", "note")),
            ("marked_at", pyarrow.timestamp("us", tz="UTC")),
        ]
    )
    rows = [mark.model_dump() | {"note": redacted(mark.note)} for mark in marks]
    with replacing(folder / NAME) as unfinished:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), unfinished)
    return len(marks)


def read_marks(folder: Path) -> list[Mark]:
    """Return the marks in a folder of exported facts; none if it has no file of them.

    Raises:
        ConfigError: the file is damaged; the message names the row and the field.
    """
    import pyarrow
    import pyarrow.parquet

    path = folder / NAME
    if not path.is_file():
        return []
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{path} is not an export of marks: {' '.join(str(error).split())}") from None
    marks = []
    for number, row in enumerate(rows, start=1):
        try:
            marks.append(Mark.model_validate(row))
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, fault["loc"]))
            raise ConfigError(f"{path}, row {number}, {where}: {fault['msg']}.") from None
    return marks
