"""Connections of clients: so many at once, and an end to those that say nothing or do not read their answers."""

import asyncio
import contextlib
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from serve.bounds import CONNECTIONS, HEAD_SECONDS, OPEN_FILES, RETRY_SECONDS, SEND_SECONDS

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: %d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    % RETRY_SECONDS
)
_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BoundedConnection(H11Protocol):  # type: ignore[misc]  # uvicorn is untyped to mypy here.
    """uvicorn's connection with limits to the time for the head of a request, and for reading what is sent."""

    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Writing pauses as soon as anything is unsent: even a closed transport waits for ever until all is sent.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > CONNECTIONS and not self._close_silent_one():
            transport.write(_FULL)
            transport.close()
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        self._cancel_send_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send_timer = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_send_timer()
        super().resume_writing()

    def _cancel_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _watch_head(self) -> None:
        """The time of a head begins with the connection or its first byte; bytes that trickle in do not extend it."""
        if self.conn.their_state is not h11.IDLE:
            self._forget_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _close_silent_one(self) -> bool:
        """Close the connection that has waited longest for the head of a request; False where all have requests."""
        silent = {one: one._head_timer.when() for one in self.connections if one._head_timer is not None}
        if silent:
            min(silent, key=silent.__getitem__)._give_up()
        return bool(silent)

    def _give_up(self) -> None:
        self._forget_timer()
        idle = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state is h11.IDLE and idle and not self.transport.is_closing():
            self.transport.write(_LATE)
            self.transport.close()

    def _forget_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def allow_many_files() -> None:
    """Raise this process's limit of open files to what full queues need, as far as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
