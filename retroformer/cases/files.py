"""Files of cases, whose names say their format: `.jsonl`, also with `.gz` or `.xz`, or `.parquet`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from retroformer.cases.case import Case
from retroformer.cases.jsonl import read_jsonl, write_jsonl
from retroformer.cases.parquet import read_parquet, write_parquet
from retroformer.errors import ConfigError, MissingInput

_JSONL = (".jsonl", ".jsonl.gz", ".jsonl.xz")


def is_case_file(path: Path) -> bool:
    """Return True if a path names a file of cases."""
    return path.name.endswith((*_JSONL, ".parquet")) and not path.is_dir()


def read_cases(path: str | Path) -> Iterator[Case]:
    """Read cases one by one from a file of JSON lines (`.jsonl`, also with `.gz` or `.xz`) or a Parquet file.

    Args:
        path: the file.

    Raises:
        MissingInput: there is no such file, or it is not a regular one.
        ConfigError: its name has another ending.
        DamagedFile: a line or row is not a case; the sentence names it and the field. The cases before it are yielded.
    """
    path = Path(path)
    if not path.exists():
        raise MissingInput(f"There is no file {path}: name a file of cases.")
    if path.name.endswith(_JSONL):
        return read_jsonl(path)
    return read_parquet(_parquet(path))


def write_cases(path: str | Path, cases: Iterable[Case]) -> int:
    """Write cases to a file of JSON lines (`.jsonl`) or a Parquet file, which appears complete or not at all.

    Args:
        path: the file; an earlier one is replaced.
        cases: any number of cases; they are written as they come.

    Returns:
        Number of cases.

    Raises:
        ConfigError: the name has another ending.
    """
    path = Path(path)
    write = write_jsonl if path.name.endswith(".jsonl") else write_parquet
    if write is write_parquet:
        _parquet(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, cases)


def _parquet(path: Path) -> Path:
    if path.suffix != ".parquet":
        raise ConfigError(f"{path} is not the name of a file of cases: end it with .jsonl or .parquet.")
    return path
