"""Reader of Reflexion's logs: from a `.jsonl[.xz]` of {"path": str, "text": str} lines, a folder, or a single file."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from retroformer.errors import MissingInput
from retroformer.files.bounded import GIB, MIB, json_rows, parse_json, read_text, size

_SUFFIXES = (".txt", ".json")
_LOG_BYTES = 64 * MIB
"""Maximum size of one log. The longest that Reflexion published has 2.3 MB."""
_MOST_BYTES = GIB
"""Maximum size of all logs, which are held in memory. Reflexion's 52 logs have 15 MB."""
_MOST_LOGS = 10_000
"""Maximum number of logs in a folder; more suggests a folder such as `/`, named by mistake."""


class Log(NamedTuple):
    """File of a recorded run: text, or the JSON results of ALFWorld and WebShop."""

    path: str
    text: str

    @property
    def is_result_file(self) -> bool:
        return self.path.endswith(".json")


def read_logs(path: Path) -> list[Log]:
    """Return all logs at `path`, ordered by path.

    Raises:
        MissingInput: there is no log, or a file is damaged or exceeds the limits.
    """
    try:
        logs = sorted(_limited(path, _logs_in(path)))
    except MissingInput:
        raise
    except OSError as error:
        raise MissingInput(f"No logs can be read from {str(path)!r} ({error}): name a file or a folder.") from error
    if not logs:
        raise MissingInput(f"No log in {str(path)!r}: name a .jsonl[.xz] of logs, a .txt log or a folder of them.")
    return logs


def _limited(path: Path, logs: Iterable[Log]) -> Iterator[Log]:
    """Yield these logs. Raises MissingInput if there are too many, or too much text, to hold in memory."""
    total = 0
    for number, log in enumerate(logs, start=1):
        total += len(log.text)
        if number > _MOST_LOGS or total > _MOST_BYTES:
            limit = f"{_MOST_LOGS} logs or {size(_MOST_BYTES)}"
            raise MissingInput(f"{str(path)!r} holds more than {limit}, the limit for one import: name a part of them.")
        yield log


def _logs_in(path: Path) -> Iterator[Log]:
    if path.is_dir():
        for file in path.rglob("*"):
            if file.suffix in _SUFFIXES and not file.is_dir():
                yield Log(str(file.relative_to(path)), read_text(file, _LOG_BYTES))
    elif path.suffix in _SUFFIXES:
        yield Log(path.name, read_text(path, _LOG_BYTES))
    else:
        wanted = 'a line is {"path": TEXT, "text": TEXT}'
        yield from json_rows(path, _log, wanted, line_bytes=_LOG_BYTES, most_bytes=_MOST_BYTES)


def _log(row: Any) -> Log:
    log = Log(row["path"], row["text"])
    if not isinstance(log.path, str) or not isinstance(log.text, str):
        raise TypeError("path and text are texts")
    return log


def reflections_without_trajectories(logs: Iterable[Log]) -> int:
    """Count the reflections in the result files: each `memory` grows by one per failure and is repeated by later files.

    A result file is a JSON list of {"name": str, "memory": [str, ...], "is_success": bool}, one entry per task.
    """
    longest: dict[tuple[Path, str], int] = {}
    for log in logs:
        for entry in _entries(log) if log.is_result_file else ():
            place = Path(log.path).parent, entry["name"]
            longest[place] = max(longest.get(place, 0), len(entry["memory"]))
    return sum(longest.values())


def _entries(log: Log) -> list[dict[str, Any]]:
    """Return the tasks of a result file; none if the file is another kind of JSON."""
    try:
        entries = parse_json(log.text, log.path)
    except MissingInput:
        return []
    return entries if isinstance(entries, list) and all(map(_is_entry, entries)) else []


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("memory"), list)
