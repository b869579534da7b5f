"""A mailbox that holds only the last value put into it."""

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """A mailbox filled from any thread and emptied in one event loop.

    A new value replaces one that was not fetched. Each output holds the whole text so far, so a queue of outputs for a
    slow client would grow with the square of the text.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._filled = asyncio.Event()
        self._value: T

    def put(self, value: T) -> None:
        """Keep `value` in place of the previous value. Callable from any thread."""
        self._loop.call_soon_threadsafe(self._keep, value)

    async def get(self) -> T:
        """Wait until there is a value that was not fetched yet, and return it."""
        await self._filled.wait()
        self._filled.clear()
        return self._value

    def _keep(self, value: T) -> None:
        self._value = value
        self._filled.set()
