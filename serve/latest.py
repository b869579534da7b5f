"""A mailbox that holds the last of what was put into it."""

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Latest(Generic[T]):
    """Filled from any thread, emptied in one event loop.

    What comes while nobody empties it takes the place of what was there: of outputs that each hold all of the text so
    far, those that a slow client has not fetched would together be as long as its square.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._filled = asyncio.Event()
        self._value: T

    def put(self, value: T) -> None:
        """Keep `value` in place of what was there. From any thread."""
        self._loop.call_soon_threadsafe(self._keep, value)

    async def get(self) -> T:
        """The last value, once there is one that was not fetched yet."""
        await self._filled.wait()
        self._filled.clear()
        return self._value

    def _keep(self, value: T) -> None:
        self._value = value
        self._filled.set()
