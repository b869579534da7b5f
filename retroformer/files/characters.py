"""Finds characters that cannot be stored: NUL, and unpaired surrogates, which JSON can escape."""

import re
from collections.abc import Iterator
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def has_surrogate(text: str) -> bool:
    """Return True if a text holds an unpaired surrogate, which cannot be written to any file."""
    return not text.isascii() and bool(_SURROGATE.search(text))


def is_storable(text: str) -> bool:
    """Return True if a database can hold a text."""
    return not _UNSTORABLE.search(text)


def storable(text: str) -> str:
    """Replace each character that a database cannot hold by U+FFFD."""
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub(REPLACEMENT, text)


def surrogate_in_json(value: Any, text: str) -> str | None:
    """Return the path of a string with an unpaired surrogate, such as `messages[0].content`, or None.

    Args:
        value: the parsed value.
        text: the JSON that it was parsed from. Such characters need an escape in it, so most values are not walked.
    """
    if "\\u" in text and _SURROGATE_ESCAPE.search(text):
        return next((place for place, string in _strings(value) if has_surrogate(string)), None)
    return None


def _strings(value: Any) -> Iterator[tuple[str, str]]:
    """Yield all strings in a JSON value, names included, each with its path."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        place, parent = waiting.pop()
        if isinstance(parent, str):
            yield place, parent
        elif isinstance(parent, dict):
            for name, child in parent.items():
                inner = f"{place}.{name}" if place else name
                yield inner, name
                waiting.append((inner, child))
        elif isinstance(parent, list):
            waiting += [(f"{place}[{index}]", child) for index, child in enumerate(parent)]
