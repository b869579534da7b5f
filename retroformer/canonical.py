"""One JSON text, and so one hash, for equal values."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def canonical_json(value: Mapping[str, Any]) -> str:
    """JSON with sorted keys and without spaces. Raises ValueError for NaN and infinities, which JSON cannot hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_of(value: Mapping[str, Any]) -> str:
    """Hexadecimal sha256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
