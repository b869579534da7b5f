"""Waiting for a state, however slow the machine is."""

import time
from collections.abc import Callable

_PATIENCE_SECONDS = 300.0
_PAUSE_SECONDS = 0.01


def becomes_true(condition: Callable[[], object]) -> bool:
    """Wait until the condition holds; return False if it still does not after five minutes."""
    end = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True
