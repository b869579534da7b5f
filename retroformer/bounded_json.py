"""Reads JSON that a user names, within limits: one line or one file at a time, no deeper than data are, and only text.

Half of a surrogate pair, which JSON can escape, is refused: no store, file or terminal takes it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from retroformer.bounded_file import has_surrogate, text_lines
from retroformer.errors import MissingInput

MOST_LEVELS = 50
"""Of nested brackets. The deepest file in use has 5 (WebShop's products); Python itself fails at about 1,000."""

_TOO_DEEP = f"is nested deeper than {MOST_LEVELS} levels"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
Row = TypeVar("Row")


def json_rows(
    path: Path, read: Callable[[Any], Row], wanted: str, *, line_bytes: int, most_bytes: int
) -> Iterator[Row]:
    """What `read` makes of each line of a file of JSON lines.

    Args:
        path: the file.
        read: makes a record of the value of a line; what it raises for data of another shape becomes a MissingInput.
        wanted: what a line has to hold, for the message.
        line_bytes: limit for one line.
        most_bytes: limit for the file, decompressed.

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
    """What makes a record unusable, in one line."""
    return f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {' '.join(str(error).split())}"


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text.

    Args:
        text: what is parsed.
        where: names the text at the beginning of an error, such as the path of its file.

    Raises:
        MissingInput: it is not JSON, nested deeper than `MOST_LEVELS`, or holds half of a surrogate pair.
    """
    try:
        return _loads(text)
    except _UnusableJson as fault:
        raise MissingInput(f"{where} {fault}: correct it, or get a fresh copy.") from None


class _UnusableJson(ValueError):
    """What is wrong with a JSON text, as the end of a sentence."""


def _loads(text: str) -> Any:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise _UnusableJson(f"is not JSON ({error.msg.removesuffix(' at')} at {place})") from None
    except RecursionError:
        raise _UnusableJson(_TOO_DEEP) from None
    except ValueError as error:
        # Such as a number of more digits than Python converts.
        raise _UnusableJson(f"is not JSON ({error})") from None
    if fault := json_fault(value, text):
        raise _UnusableJson(fault)
    return value


def json_fault(value: Any, text: str) -> str | None:
    """What makes a parsed value unusable, as the end of a sentence; `text` is what it was parsed from."""
    # Counting is a hundred times faster than walking, and clears nearly every value.
    if text.count("[") + text.count("{") > MOST_LEVELS and _is_too_deep(value):
        return _TOO_DEEP
    if "\\u" in text and _SURROGATE_ESCAPE.search(text) and any(map(has_surrogate, _strings(value))):
        return "holds half of a surrogate pair, which is no character"
    return None


def _is_too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
    return bool(level)


def _strings(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, str):
            yield parent
        elif isinstance(parent, dict):
            waiting += parent
        waiting += _children(parent)


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
