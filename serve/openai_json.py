"""Bodies of requests, read as JSON more strictly than Python does it."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from serve.errors import RequestError

BAD_REQUEST = 400
INTEGER_DIGITS = 20
"""Of the longest integer in 64 bits, with its sign."""
SURROGATE = re.compile("[\ud800-\udfff]")
SPELLED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
SHOWN_CHARACTERS = 100


def read_json(body: bytes) -> dict[str, Any]:
    """The object that `body` is.

    NaN, infinities and integers of more than 64 bits become floats that are not finite, for the check of their field.

    Raises:
        RequestError: it is not JSON, no object, has a name twice, or text that is not Unicode.
    """
    try:
        page = json.loads(body.decode(), object_pairs_hook=_object, parse_int=_integer)
    except RecursionError:
        raise RequestError(BAD_REQUEST, "The request body is nested too deeply.") from None
    except ValueError as error:
        raise RequestError(BAD_REQUEST, f"The request body is not JSON: {error}.") from None
    if not isinstance(page, dict):
        raise RequestError(BAD_REQUEST, "The request body is not a JSON object.")
    if SPELLED_SURROGATE.search(body):
        for path, text in _texts(page):
            if SURROGATE.search(text):
                raise RequestError(BAD_REQUEST, f"{path}: half a character (a lone surrogate) is no text.", path)
    return page


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    page = dict(pairs)
    if len(page) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(BAD_REQUEST, f"{shown(twice)} stands twice in one object.", shown(twice))
    return page


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= INTEGER_DIGITS else math.inf


def _texts(page: Any) -> Iterator[tuple[str, str]]:
    """All texts in a page, each with its place; names too."""
    waiting: list[tuple[str, Any]] = [("", page)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            yield path, value
        elif isinstance(value, dict):
            for name, inner in value.items():
                place = f"{path}.{shown(name)}" if path else shown(name)
                yield place, name
                waiting.append((place, inner))
        elif isinstance(value, list):
            waiting += [(f"{path}[{index}]", inner) for index, inner in enumerate(value)]


def shown(name: str) -> str:
    """A client's own name for something, as an answer may repeat it."""
    return name[:SHOWN_CHARACTERS].encode("ascii", "backslashreplace").decode()
