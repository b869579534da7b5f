"""Request bodies, parsed as JSON more strictly than Python does."""

import json
import math
from collections.abc import Sequence
from typing import Any

from retroformer.files.characters import surrogate_in_json

from .errors import RequestError

BAD_REQUEST = 400
INTEGER_DIGITS = 20
"""Length of the longest 64-bit integer, with its sign."""
SHOWN_CHARACTERS = 100


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`.

    NaN, infinities and integers of more than 64 bits become non-finite floats, which the check of their field refuses.

    Raises:
        RequestError: it is not JSON or not an object, has a duplicate name, or text that is not Unicode.
    """
    try:
        text = body.decode()
        parsed = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except RecursionError:
        raise RequestError(BAD_REQUEST, "The request body is nested too deeply.") from None
    except ValueError as error:
        raise RequestError(BAD_REQUEST, f"The request body is not JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise RequestError(BAD_REQUEST, "The request body is not a JSON object.")
    if (path := surrogate_in_json(parsed, text)) is not None:
        field = shown(path)
        raise RequestError(BAD_REQUEST, f"{field}: half a character (a lone surrogate) is not text.", field)
    return parsed


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise RequestError(BAD_REQUEST, f"{shown(duplicate)} appears twice in one object.", shown(duplicate))
    return parsed


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= INTEGER_DIGITS else math.inf


def shown(name: str) -> str:
    """Return a client's own name for something, shortened and in ASCII, as an error message may repeat it."""
    return name[:SHOWN_CHARACTERS].encode("ascii", "backslashreplace").decode()
