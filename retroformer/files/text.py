"""JSON, its canonical form and hash; characters that cannot be stored (NUL, lone surrogates) or deceive a reader."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any


def canonical_json(value: Mapping[str, Any]) -> str:
    """Return JSON with sorted keys and no spaces. Raises ValueError for NaN and infinities, which JSON cannot hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_of(value: Mapping[str, Any]) -> str:
    """Return the hexadecimal sha256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def differences(bound: Any, wanted: Any, at: str = "") -> Iterator[str]:
    """Yield the differences between two nested mappings, such as `loop.memory=3, not 2`."""
    if isinstance(bound, dict) and isinstance(wanted, dict):
        for name in sorted(bound.keys() | wanted.keys()):
            yield from differences(bound.get(name), wanted.get(name), f"{at}.{name}" if at else name)
    elif bound != wanted:
        yield f"{at}={bound!r}, not {wanted!r}"


class RepeatedName(ValueError):
    """Error: an object of JSON has a field twice, of which `json.loads` would keep the last."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name[:100]!r} appears twice in one object")
        self.name = name


def json_value(text: str | bytes) -> Any:
    """Parse JSON. Raises RepeatedName, ValueError, RecursionError."""
    return json.loads(text, object_pairs_hook=_unique_names)


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        raise RepeatedName(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return parsed


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_INVISIBLE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Control characters other than tab and line feed, characters that change the direction of text, and invisible ones."""
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


def visible(text: str) -> str:
    r"""Write characters that move the cursor, change the direction of text or cannot be seen as escapes: `\u202e`."""
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


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
