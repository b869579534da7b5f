"""The policy for HTTP requests that fail: which faults may pass, how often to try, and how long to pause."""

import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

TRIES = 3
_FIRST_PAUSE_SECONDS = 0.5
"""Pause before the first retry, doubled for each further one. Up to a quarter of it is randomly subtracted, so that
many clients do not retry at the same moment."""
_LONGEST_PAUSE_SECONDS = 7 * 86_400.0
"""Longest pause; a requested pause that is longer, or infinite, is cut to this."""
_TEMPORARY = {408, 409, 429}


class Headers(Protocol):
    """Headers of a response, found by their names in lower case."""

    def get(self, name: str, /) -> str | None: ...


def is_temporary(status: int) -> bool:
    """Return True if a request that was answered with this status code may succeed a little later."""
    return status in _TEMPORARY or status >= 500


def pause_after(attempt: int) -> float:
    """Return the pause in seconds after a failed attempt, counted from 1, if the server requests none."""
    return _FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1) * random.uniform(0.75, 1.0)


def asked_pause(headers: Headers) -> float | None:
    """Return the pause that a server requests, in seconds, or None if it requests none."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        seconds = None if value is None else _seconds(value, unit)
        if seconds is not None and seconds > 0:
            return min(seconds, _LONGEST_PAUSE_SECONDS)
    return None


def _seconds(value: str, unit: float) -> float | None:
    """Convert a number or a date to seconds from now. The caller's comparison discards NaN."""
    try:
        return float(value) / unit
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
