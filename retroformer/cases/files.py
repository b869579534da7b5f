"""Files of cases: JSON lines, perhaps compressed, or Parquet. The ending of the name says which, or the caller."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from retroformer.cases.case import CASE_BYTES, Case, parse_case
from retroformer.cases.parquet import read_parquet, write_parquet
from retroformer.errors import ConfigError, MissingInput
from retroformer.files.bounded import GIB, text_lines
from retroformer.files.durable import replacing
from retroformer.run.store.rows import serialised

Format = Literal["cases", "parquet"]
"""Format of a file of cases; `cases` are JSON lines."""
_FILE_BYTES = 64 * GIB


def read_cases(path: str | Path, file_format: Format | None = None) -> Iterator[Case]:
    """Read cases one by one from a file of JSON lines (`.jsonl`, also with `.gz` or `.xz`) or a Parquet file.

    Args:
        path: the file.
        file_format: `cases` or `parquet`; by default the ending of the name decides.

    Raises:
        MissingInput: there is no such file, or it is not a regular one.
        ConfigError: its name has another ending.
        DamagedFile: a line or row is not a case; the sentence names it and the field. The cases before it are yielded.
    """
    path = Path(path)
    if not path.exists():
        raise MissingInput(f"There is no file {path}: name a file of cases.")
    plain = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    return read_parquet(path) if (file_format or _format_of(plain)) == "parquet" else _read_lines(path)


def write_cases(path: str | Path, cases: Iterable[Case], file_format: Format | None = None) -> int:
    """Write cases to a file of JSON lines (`.jsonl`) or a Parquet file, which appears complete or not at all.

    Args:
        path: the file; an earlier one is replaced.
        cases: any number of cases; they are written as they come.
        file_format: `cases` or `parquet`; by default the ending of the name decides.

    Returns:
        Number of cases.

    Raises:
        ConfigError: the name has another ending.
    """
    path = Path(path)
    write = write_parquet if (file_format or _format_of(path)) == "parquet" else _write_lines
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        return write(unfinished, cases)


def _format_of(path: Path) -> Format:
    """Return the format that the ending of a name says. Raises ConfigError."""
    if path.suffix == ".parquet":
        return "parquet"
    if path.suffix == ".jsonl":
        return "cases"
    raise ConfigError(f"{path} is not the name of a file of cases: end it with .jsonl or .parquet.")


def _read_lines(path: Path) -> Iterator[Case]:
    """Yield the cases of a file of JSON lines. Raises DamagedFile; MissingInput as `text_lines` raises it."""
    for number, line in text_lines(path, CASE_BYTES, _FILE_BYTES):
        yield parse_case(line.rstrip(), f"Line {number} of {path}")


def _write_lines(path: Path, cases: Iterable[Case]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for case in cases:
            file.write(f"{serialised(case)[1]}\n")
            count += 1
    return count
