"""Observers that record the steps of an attempt, such as from telemetry, in place of what the agent returns."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

Seen = Callable[[], Mapping[str, Any] | None]
"""Function that returns, after an attempt, its `steps` or `messages` and its `usage`, as in
`retroformer.attempt_result`; None if nothing was seen."""


class Watch(Protocol):
    """Observer of attempts."""

    def attempt(self) -> AbstractContextManager[Seen]:
        """Watch one attempt for the time of a `with` block, in the thread or task that enters it."""
        ...


def watching(watch: Watch | None) -> AbstractContextManager[Seen]:
    """Return a context that watches one attempt; without an observer it does nothing."""
    return nullcontext(lambda: None) if watch is None else watch.attempt()
