"""Reads JSON files that a user names, with limits on the length of a line and a file and on nesting.

An unpaired surrogate, which JSON can escape, is refused: no store, file or terminal accepts it.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from retroformer.errors import MissingInput
from retroformer.files.bounded_file import text_lines
from retroformer.files.characters import surrogate_in_json

MOST_LEVELS = 50
"""Largest number of nested brackets. The deepest file in use has 5 (WebShop's products); Python fails at about
1,000."""

_TOO_DEEP = f"is nested deeper than {MOST_LEVELS} levels"
Row = TypeVar("Row")


def json_rows(
    path: Path, read: Callable[[Any], Row], wanted: str, *, line_bytes: int, most_bytes: int
) -> Iterator[Row]:
    """Yield the result of `read` for each line of a JSON lines file.

    Args:
        path: the file.
        read: converts the value of a line to a record; its exceptions for data of another shape become MissingInput.
        wanted: description of a correct line, for the message.
        line_bytes: limit for one line, in bytes.
        most_bytes: limit for the decompressed file, in bytes.

    Raises:
        MissingInput: as `text_lines` does; or a line is unusable JSON, or refused by `read`.
    """
    for number, line in text_lines(path, line_bytes, most_bytes):
        try:
            value = _loads(line.rstrip("\r\n"))
        except _UnusableJson as fault:
            raise MissingInput(f"Line {number} of {path} {fault}: correct it, or get a fresh copy.") from None
        try:
            row = read(value)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise MissingInput(
                f"Line {number} of {path} is JSON of another shape ({_why(error)}): {wanted}."
            ) from error
        yield row


def _why(error: Exception) -> str:
    """Describe what makes a record unusable, in one line."""
    return f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {' '.join(str(error).split())}"


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON text.

    Args:
        text: the text to parse.
        where: name of the text at the beginning of an error, such as the path of its file.

    Raises:
        MissingInput: it is not JSON, is nested deeper than `MOST_LEVELS`, or holds an unpaired surrogate.
    """
    try:
        return _loads(text)
    except _UnusableJson as fault:
        raise MissingInput(f"{where} {fault}: correct it, or get a fresh copy.") from None


class _UnusableJson(ValueError):
    """Fault of a JSON text, whose message is the end of a sentence."""


def _loads(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise _UnusableJson(f"is not JSON ({error.msg.removesuffix(' at')} at {place})") from None
    except RecursionError:
        raise _UnusableJson(_TOO_DEEP) from None
    except ValueError as error:
        # For example, a number with more digits than Python converts.
        raise _UnusableJson(f"is not JSON ({error})") from None
    if fault := json_fault(value, text):
        raise _UnusableJson(fault)
    return value


def json_fault(value: Any, text: str) -> str | None:
    """Describe what makes a value parsed from `text` unusable, as the end of a sentence; None if it is usable."""
    # Counting brackets is a hundred times faster than walking the value, and is enough for nearly every value.
    if text.count("[") + text.count("{") > MOST_LEVELS and _is_too_deep(value):
        return _TOO_DEEP
    if surrogate_in_json(value, text) is not None:
        return "holds half of a surrogate pair, which is not a character"
    return None


def _is_too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
    return bool(level)


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
