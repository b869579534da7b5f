"""Files of cases: JSON lines, perhaps compressed, or Parquet. The ending of the name says which, or the caller.

Parquet has typed columns: the fields of a case as nested structs and lists. Two fields hold text or other JSON, so each
has a second column: the input of a task (`input_json`), and the parts of a message's content (`parts`). The data of a
part, the conditions and the stored reflection are columns of JSON as text.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, JsonValue

from retroformer.cases.case import CASE_BYTES, Case, CaseTask, parse_case, without_nulls
from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.files.bounded import GIB, MIB, most_decompressed, open_regular, size, text_lines
from retroformer.files.durable import replace_file
from retroformer.files.text import json_value
from retroformer.method.records import ChatMessage, ContentPart, Reflection
from retroformer.run.store.rows import serialise

if TYPE_CHECKING:
    import pyarrow

Format = Literal["cases", "parquet"]
"""Format of a file of cases; `cases` are JSON lines."""
FORMATS: tuple[Format, ...] = get_args(Format)
_FILE_BYTES = 64 * GIB
_ROWS_AT_ONCE = 500
"""Number of cases in memory at a time."""
_BATCH_BYTES = 64 * MIB
"""Largest size at which these become Python objects together."""
_INDEX_BYTES = 4
_PANDAS_INDEX = "__index_level_"
"""Beginning of the names of columns that pandas adds."""


def read_cases(path: str | Path, file_format: Format | None = None) -> Iterator[Case]:
    """Read cases one by one from a file of JSON lines (`.jsonl`, also with `.gz` or `.xz`) or a Parquet file.

    The ending of the name decides, unless a format is given.

    Raises:
        MissingInput: there is no such file, or it is not a regular one.
        ConfigError: its name has another ending.
        DamagedFile: a line or row is not a case; the sentence names it and the field. The cases before it are yielded.
    """
    path = Path(path)
    if not path.exists():
        raise MissingInput(f"There is no file {path}: name a file of cases.")
    plain = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    if (file_format or _format_of(plain)) == "parquet":
        return _read_parquet(path)
    return (parse_case(line, f"Line {number} of {path}") for number, line in text_lines(path, CASE_BYTES, _FILE_BYTES))


def write_cases(path: str | Path, cases: Iterable[Case], file_format: Format | None = None) -> int:
    """Write cases, as they come, to a file of JSON lines (`.jsonl`) or a Parquet file; return their number.

    The file appears complete or not at all, in place of an earlier one. The ending of the name decides, unless a format
    is given. Raises ConfigError if the name has another ending.
    """
    path = Path(path)
    write = _write_parquet if (file_format or _format_of(path)) == "parquet" else _write_lines
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as unfinished:
        return write(unfinished, cases)


def _format_of(path: Path) -> Format:
    """Return the format that the ending of a name says. Raises ConfigError."""
    if path.suffix == ".parquet":
        return "parquet"
    if path.suffix == ".jsonl":
        return "cases"
    raise ConfigError(f"{path} is not the name of a file of cases: end it with .jsonl or .parquet.")


def _write_lines(path: Path, cases: Iterable[Case]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for case in cases:
            file.write(f"{serialise(case)[1]}\n")
            count += 1
    return count


def _read_parquet(path: Path) -> Iterator[Case]:
    """Yield the cases of a file. Raises DamagedFile with the row, from 1, and the field; MissingInput."""
    import pyarrow
    import pyarrow.parquet

    number = 0
    with open_regular(path) as file:
        try:
            schema = pyarrow.parquet.ParquetFile(file).schema
            leaves = [schema.column(place) for place in range(len(schema))]
            # A dictionary makes a small file large: its values stay in it until their sizes are known.
            texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
            opened = pyarrow.parquet.ParquetFile(file, read_dictionary=texts)
            _refuse_bomb(opened.metadata, path)
            columns = [name for name in opened.schema_arrow.names if not name.startswith(_PANDAS_INDEX)]
            for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=columns):
                for part in _parts(batch):
                    if _decoded_bytes(part.to_struct_array()) > CASE_BYTES and part.num_rows == 1:
                        raise _too_large(f"Row {number + 1} of {path}")
                    for row in part.to_pylist():
                        number += 1
                        yield _case(row, f"Row {number} of {path}")
        except DamagedFile:
            raise
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            what = " ".join(str(error).split())
            raise DamagedFile(
                f"{path} cannot be read as Parquet after row {number} ({what}): get a fresh copy."
            ) from None


def _refuse_bomb(metadata: "pyarrow.parquet.FileMetaData", path: Path) -> None:
    """Raise DamagedFile if the pages of a file are far larger than the file."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    most = most_decompressed(path.stat().st_size)
    # Equal values are counted in the file, and take the bytes of an index each when they are read.
    values = [group.column(leaf).num_values for group in groups for leaf in range(metadata.num_columns)]
    if sum(group.total_byte_size for group in groups) > most or max(values, default=0) * _INDEX_BYTES > most:
        raise DamagedFile(f"{path} holds more than {size(most)}, the limit for a file of its size: name a smaller one.")


def _parts(batch: "pyarrow.RecordBatch") -> Iterator["pyarrow.RecordBatch"]:
    """Yield a batch, or its rows one by one if it is large as Python objects."""
    if _decoded_bytes(batch.to_struct_array()) <= _BATCH_BYTES:
        yield batch
        return
    for number in range(batch.num_rows):
        yield batch.slice(number, 1)


def _decoded_bytes(array: "pyarrow.Array") -> int:
    """Return the size of an array in which every value stands by itself, not in a dictionary."""
    import pyarrow
    import pyarrow.compute

    if pyarrow.types.is_dictionary(array.type):
        lengths = pyarrow.compute.binary_length(array.dictionary).take(array.indices)
        return pyarrow.compute.sum(lengths).as_py() or 0
    if pyarrow.types.is_struct(array.type):
        return sum(map(_decoded_bytes, array.flatten()))
    if pyarrow.types.is_list(array.type) or pyarrow.types.is_large_list(array.type):
        return _decoded_bytes(array.flatten())
    return int(array.nbytes)


def _too_large(where: str) -> DamagedFile:
    return DamagedFile(f"{where} holds more than {size(CASE_BYTES)}, the limit for a case: shorten it.")


def _write_parquet(path: Path, cases: Iterable[Case]) -> int:
    import pyarrow
    import pyarrow.parquet

    schema, count, waiting = pyarrow.schema(list(_arrow_type(Case))), 0, iter(cases)
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while rows := [_row(case) for case in islice(waiting, _ROWS_AT_ONCE)]:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            count += len(rows)
    return count


_SECOND_COLUMNS: dict[Any, tuple[str, Any]] = {
    CaseTask: ("input_json", str),
    ChatMessage: ("parts", tuple[ContentPart, ...]),
}
"""Name and type of the second column of each model that has one."""


def _arrow_type(annotation: Any) -> "pyarrow.DataType":
    """Return the Arrow type of a field: a struct, a list, a number, or text, which may be JSON."""
    import pyarrow

    kind = get_origin(annotation)
    if kind in (dict, Literal) or annotation in (JsonValue, Reflection):
        return pyarrow.string()
    if kind in (tuple, Annotated, Union, UnionType):
        inner = _arrow_type(next(argument for argument in get_args(annotation) if argument is not NoneType))
        return pyarrow.list_(inner) if kind is tuple else inner
    if issubclass(annotation, BaseModel):
        fields = [(name, field.annotation) for name, field in annotation.model_fields.items()]
        if annotation in _SECOND_COLUMNS:
            fields.append(_SECOND_COLUMNS[annotation])
        return pyarrow.struct([(name, _arrow_type(field)) for name, field in fields])
    numbers = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    return numbers.get(annotation, pyarrow.string())


def _case(row: dict[str, Any], where: str) -> Case:
    """Parse a row. Raises DamagedFile."""
    fields = without_nulls(row)
    for place, holder, name in _json_columns(fields):
        if isinstance(holder[name], str):
            try:
                holder[name] = json_value(holder[name])
            except (ValueError, RecursionError) as error:
                raise DamagedFile(f"{where}, {place}: it is not JSON ({error}); correct it.") from None
    if isinstance(task := fields.get("task"), dict) and "input_json" in task:
        task["input"] = task.pop("input_json")
    for _, message in _messages(fields):
        if "parts" in message:
            message["content"] = message.pop("parts")
    try:
        text = json.dumps(fields, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise DamagedFile(f"{where} holds a value that is not JSON ({error}): correct its column.") from None
    if len(text) > CASE_BYTES:
        raise _too_large(where)
    return parse_case(text, where)


def _row(case: Case) -> dict[str, Any]:
    """Return the row of a case."""
    row: dict[str, Any] = json.loads(serialise(case)[1])
    if not isinstance(row["task"]["input"], str):
        row["task"]["input_json"] = row["task"].pop("input")
    for _, message in _messages(row):
        if isinstance(message.get("content"), list):
            message["parts"] = message.pop("content")
    for _, holder, name in _json_columns(row):
        holder[name] = json.dumps(holder[name], ensure_ascii=False)
    return row


def _json_columns(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the place of each column of JSON in a row, the object that has it, and its name there."""
    for parent, name in (("task", "input_json"), ("origin", "conditions"), ("advice", "reflection")):
        if isinstance(holder := row.get(parent), dict) and name in holder:
            yield f"{parent}.{name}", holder, name
    for place, message in _messages(row):
        for index, part in enumerate(message.get("parts", ())):
            if isinstance(part, dict) and "data" in part:
                yield f"{place}.parts.{index}.data", part, "data"


def _messages(row: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place of each message of a row, and the message."""
    for parent in ("attempt", "retry"):
        attempt = row.get(parent)
        messages = attempt.get("messages") if isinstance(attempt, dict) else None
        for number, message in enumerate(messages if isinstance(messages, list) else ()):
            if isinstance(message, dict):
                yield f"{parent}.messages.{number}", message
