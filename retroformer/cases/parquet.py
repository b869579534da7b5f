"""Cases as Parquet with typed columns: the fields of a case as nested structs and lists.

Two fields hold text or other JSON, so each has a second column: the input of a task (`input_json`), and the parts of a
message's content (`parts`). The data of a part, the conditions and the stored reflection are columns of JSON as text.
"""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

from retroformer.cases.case import CASE_BYTES, Case, CaseTask, parse_case
from retroformer.errors import DamagedFile
from retroformer.files.bounded import GIB, open_regular, size
from retroformer.method.conversation import ChatMessage, ContentPart
from retroformer.method.records import Reflection
from retroformer.run.store.rows import serialised

if TYPE_CHECKING:
    import pyarrow

_ROWS_AT_ONCE = 500
"""Number of cases in memory at a time."""
_ROW_GROUP_BYTES = 4 * GIB
"""Largest row group, uncompressed: a small file may decompress to anything."""
_OF_PANDAS = "__index_level_"
"""Beginning of the names of columns that pandas adds."""


def read_parquet(path: Path) -> Iterator[Case]:
    """Yield the cases of a file.

    Raises:
        DamagedFile: it is not Parquet, or a row is not a case; the sentence names the row, from 1, and the field.
        MissingInput: it is not a regular file.
    """
    import pyarrow
    import pyarrow.parquet

    number = 0
    with open_regular(path) as file:
        try:
            opened = pyarrow.parquet.ParquetFile(file)
            _check_size(opened.metadata, path)
            columns = [name for name in opened.schema_arrow.names if not name.startswith(_OF_PANDAS)]
            for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield _case(row, f"Row {number} of {path}")
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            if isinstance(error, DamagedFile):
                raise
            what = " ".join(str(error).split())
            raise DamagedFile(
                f"{path} cannot be read as Parquet after row {number} ({what}): get a fresh copy."
            ) from None


def write_parquet(path: Path, cases: Iterable[Case]) -> int:
    """Write a file and return the number of its cases."""
    import pyarrow
    import pyarrow.parquet

    schema, count, waiting = _schema(), 0, iter(cases)
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while rows := [_row(case) for case in islice(waiting, _ROWS_AT_ONCE)]:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            count += len(rows)
    return count


def _schema() -> "pyarrow.Schema":
    """Return the Arrow schema of a file of cases, which follows from the fields of `Case`."""
    import pyarrow

    columns = _arrow_type(Case)
    return pyarrow.schema([columns.field(number) for number in range(columns.num_fields)])


def _arrow_type(annotation: Any) -> "pyarrow.DataType":
    """Return the Arrow type of a field. Raises TypeError for a type that has none."""
    import pyarrow

    if annotation in _JSON:
        return pyarrow.string()
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = [pyarrow.field(name, _arrow_type(field.annotation)) for name, field in annotation.model_fields.items()]
        if extra := _SECOND_COLUMNS.get(annotation):
            fields.append(pyarrow.field(extra, pyarrow.string() if extra == "input_json" else _parts()))
        return pyarrow.struct(fields)
    scalars = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), datetime: pyarrow.string()}
    if annotation in scalars:
        return scalars[annotation]
    if get_origin(annotation) in (dict, Literal) or (isinstance(annotation, type) and issubclass(annotation, str)):
        return pyarrow.string()
    first, *_ = [argument for argument in get_args(annotation) if argument is not NoneType] or [None]
    if get_origin(annotation) is tuple:
        return pyarrow.list_(_arrow_type(first))
    if get_origin(annotation) in (Annotated, Union, UnionType):
        return _arrow_type(first)
    raise TypeError(f"no Arrow type for {annotation!r}")


def _parts() -> "pyarrow.DataType":
    import pyarrow

    return pyarrow.list_(_arrow_type(ContentPart))


_JSON = (JsonValue, Reflection)
"""Types whose values are JSON as text."""
_SECOND_COLUMNS: dict[type[BaseModel], str] = {CaseTask: "input_json", ChatMessage: "parts"}


def _check_size(metadata: Any, path: Path) -> None:
    for number in range(metadata.num_row_groups):
        if metadata.row_group(number).total_byte_size > _ROW_GROUP_BYTES:
            limit = size(_ROW_GROUP_BYTES)
            raise DamagedFile(f"Row group {number} of {path} holds more than {limit}, the limit: write smaller ones.")


def _case(row: dict[str, Any], where: str) -> Case:
    """Parse a row. Raises DamagedFile."""
    fields = _from_columns(_without_nulls(row), where)
    try:
        text = json.dumps(fields, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise DamagedFile(f"{where} holds a value that is not JSON ({error}): correct its column.") from None
    if len(text) > CASE_BYTES:
        raise DamagedFile(f"{where} holds more than {size(CASE_BYTES)}, the limit for a case: shorten it.")
    return parse_case(text, where)


def _without_nulls(value: Any) -> Any:
    """Return a row without the fields that are null: Parquet has every field in every row."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _from_columns(row: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a row with each second column in the place of the first."""
    task = row.get("task")
    if isinstance(task, dict) and "input_json" in task:
        task["input"] = _parsed(task.pop("input_json"), f"{where}, task.input_json")
    for place, holder, name in _json_columns(row):
        if isinstance(holder.get(name), str):
            holder[name] = _parsed(holder[name], f"{where}, {place}")
    for place, number, message in _messages_of(row):
        if "parts" in message:
            message["content"] = message.pop("parts")
            for index, part in enumerate(message["content"]):
                if isinstance(part.get("data"), str):
                    column = f"{where}, {place}.messages.{number}.parts.{index}.data"
                    part["data"] = _parsed(part["data"], column)
    return row


def _parsed(text: Any, where: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        raise DamagedFile(f"{where}: it is not JSON; correct it and read the file again.") from None


def _row(case: Case) -> dict[str, Any]:
    """Return the row of a case."""
    row: dict[str, Any] = json.loads(serialised(case)[1])
    task = row["task"]
    if not isinstance(task["input"], str):
        task["input_json"] = json.dumps(task.pop("input"), ensure_ascii=False)
    for _, holder, name in _json_columns(row):
        if name in holder:
            holder[name] = json.dumps(holder[name], ensure_ascii=False)
    for _, _, message in _messages_of(row):
        if isinstance(message.get("content"), list):
            message["parts"] = message.pop("content")
            for part in message["parts"]:
                if "data" in part:
                    part["data"] = json.dumps(part["data"], ensure_ascii=False)
    return row


def _json_columns(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the place of each column of JSON outside of messages, the object that has it, and its name there."""
    for parent, name in (("origin", "conditions"), ("advice", "reflection")):
        if isinstance(holder := row.get(parent), dict):
            yield f"{parent}.{name}", holder, name


def _messages_of(row: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield each message with the attempt that it is in, and its number there."""
    for place in ("attempt", "retry"):
        attempt = row.get(place)
        messages = attempt.get("messages") if isinstance(attempt, dict) else None
        for number, message in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(message, dict):
                yield place, number, message
