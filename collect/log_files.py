"""Finds Reflexion's logs: in a `.jsonl[.xz]` of {"path": str, "text": str} lines, a folder, or a single file."""

import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from retroformer.errors import MissingInput

_SUFFIXES = (".txt", ".json")


class Log(NamedTuple):
    """One file of a recorded run: text, or the JSON results of ALFWorld and WebShop."""

    path: str
    text: str

    @property
    def is_result_file(self) -> bool:
        return self.path.endswith(".json")


def read_logs(path: Path) -> list[Log]:
    """All logs at `path`, in the order of their paths.

    Raises:
        MissingInput: there is none, or the file is damaged.
    """
    try:
        logs = sorted(_found(path))
    except (OSError, lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise MissingInput(f"No logs can be read from {str(path)!r} ({type(error).__name__}: {error}).") from error
    if not logs:
        raise MissingInput(f"No log in {str(path)!r}: name a .jsonl[.xz] of logs, a .txt log or a folder of them.")
    return logs


def _found(path: Path) -> Iterator[Log]:
    if path.is_dir():
        for file in path.rglob("*"):
            if file.suffix in _SUFFIXES:
                yield Log(str(file.relative_to(path)), file.read_text(encoding="utf-8"))
    elif path.suffix in _SUFFIXES:
        yield Log(path.name, path.read_text(encoding="utf-8"))
    else:
        yield from _rows(path)


def _rows(path: Path) -> Iterator[Log]:
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Log(row["path"], row["text"])


def reflections_without_trajectories(logs: Iterable[Log]) -> int:
    """How many reflections the result files hold: each `memory` grows by one a failure and is repeated by later files.

    A result file is a JSON list of {"name": str, "memory": [str, ...], "is_success": bool}, one entry a task.
    """
    longest: dict[tuple[Path, str], int] = {}
    for log in logs:
        for entry in _entries(log) if log.is_result_file else ():
            place = Path(log.path).parent, entry["name"]
            longest[place] = max(longest.get(place, 0), len(entry["memory"]))
    return sum(longest.values())


def _entries(log: Log) -> list[dict[str, Any]]:
    """The tasks of a result file; none where the file is another kind of JSON."""
    try:
        entries = json.loads(log.text)
    except ValueError:
        return []
    known = isinstance(entries, list) and all(
        isinstance(one, dict) and {"name", "memory"} <= set(one) for one in entries
    )
    return entries if known else []
