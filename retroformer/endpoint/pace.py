"""How many requests an address gets at once: fewer after every sign of overload, more after every answer.

The limit is halved when the address answers that it is overloaded, and grows by one in the time of as many answers as
it allows requests at once, as TCP does with its window (Jacobson, 1988).
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retroformer.secrets.url import SecretUrl

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class Pace:
    """Limit on the requests in flight to one address, of one event loop."""

    def __init__(self) -> None:
        self._limit = math.inf
        self._in_flight = 0
        self._resumes_at = self._slowed_at = self._avoided_until = -math.inf
        self._waiting = deque[asyncio.Future[None]]()

    @property
    def limit(self) -> float:
        """Number of requests that the address gets at once; infinite until it is overloaded for the first time."""
        return self._limit

    @property
    def is_paused(self) -> bool:
        """True if the address has asked for a pause that has not ended."""
        return max(self._resumes_at, self._avoided_until) > asyncio.get_running_loop().time()

    @property
    def load(self) -> tuple[bool, bool, float]:
        """How unfit the address is for the next request, as a sort key.

        True if it is avoided; True if the request would have to wait; and the requests in flight, or as a share of the
        limit.
        """
        now, ahead = asyncio.get_running_loop().time(), self._in_flight + len(self._waiting)
        waits = ahead + 1 > self._limit or self._resumes_at > now
        return self._avoided_until > now, waits, ahead / self._limit if waits else ahead

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Wait for a turn, and hold it. Yields the time of the event loop at which it began."""
        loop = asyncio.get_running_loop()
        try:
            while (pause := self._resumes_at - loop.time()) > 0 or self._in_flight + 1 > self._limit:
                if pause > 0:
                    await asyncio.sleep(pause)
                    continue
                waiting = loop.create_future()
                self._waiting.append(waiting)
                await waiting
        except asyncio.CancelledError:
            self._wake()  # If it was its turn, this goes to the next in the queue.
            raise
        self._in_flight += 1
        try:
            yield loop.time()
        finally:
            self._in_flight -= 1
            self._wake()

    def slow_down(self, began: float, pause: float) -> None:
        """Halve the limit, once for all requests that were in flight together, and pause for so many seconds.

        Args:
            began: when the turn of the request began that met the overload.
            pause: seconds in which no request is sent.
        """
        now = asyncio.get_running_loop().time()
        self._resumes_at = max(self._resumes_at, now + pause)
        if began >= self._slowed_at:
            self._limit = max(1.0, min(self._limit, self._in_flight) / 2)
            self._slowed_at = now

    def avoid(self, seconds: float) -> None:
        """Send requests elsewhere for so long, if another address has room; nobody waits for this one."""
        self._avoided_until = max(self._avoided_until, asyncio.get_running_loop().time() + seconds)

    def speed_up(self) -> None:
        """Raise the limit a little after an answer."""
        self._limit += 1 / self._limit

    def _wake(self) -> None:
        """Wake as many as may begin; each checks again whether it may."""
        free = self._limit - self._in_flight
        while self._waiting and free >= 1:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                free -= 1


@dataclass
class Server:
    """An address that serves the model, with its client and its pace."""

    address: SecretUrl
    client: "AsyncOpenAI"
    pace: Pace


def least_loaded(servers: Sequence[Server]) -> Server:
    """Return the server with room that has the fewest requests, else the one whose queue is the shortest."""
    return min(servers, key=lambda server: server.pace.load)
