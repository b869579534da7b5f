"""Client connections: a limit on their number, and timeouts for clients that send or read nothing."""

import asyncio
import contextlib
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .bounds import CONNECTIONS, HEAD_SECONDS, OPEN_FILES, RETRY_SECONDS, SEND_SECONDS

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: %d\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    % RETRY_SECONDS
)
_LATE = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BoundedConnection(H11Protocol):  # type: ignore[misc]  # uvicorn is untyped to mypy here.
    """uvicorn's connection, with time limits for sending the head of a request and for reading the response."""

    _head_timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Writing pauses as soon as anything is unsent, since even a closed transport waits for ever to send it all.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > CONNECTIONS and not self._close_oldest_silent():
            transport.write(_FULL)
            transport.close()
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
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
        """Start the head timer at the connection or the first byte of a request; later bytes do not extend it."""
        if self.conn.their_state is not h11.IDLE:
            self._cancel_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._time_out)

    def _close_oldest_silent(self) -> bool:
        """Close the connection that has been without a request head for longest; return False if there is none."""
        deadlines = {other: other._head_timer.when() for other in self.connections if other._head_timer is not None}
        if deadlines:
            min(deadlines, key=deadlines.__getitem__)._time_out()
        return bool(deadlines)

    def _time_out(self) -> None:
        self._cancel_head_timer()
        idle = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state is h11.IDLE and idle and not self.transport.is_closing():
            self.transport.write(_LATE)
            self.transport.close()

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def allow_many_files() -> None:
    """Raise this process's limit of open files to `OPEN_FILES`, as far as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
