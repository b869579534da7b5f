"""Canonical JSON, so that equal values have one text and one hash; and the differences between two values."""

import hashlib
import json
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
