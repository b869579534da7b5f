"""Serves ASGI applications: the guard that every request passes, and the connection with its limits."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Literal

import h11
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from retroformer.endpoint.request_guard import (
    BODY_SECONDS,
    CLOSING_RESPONSE,
    CONNECTIONS,
    FORM,
    HEAD_SECONDS,
    JSON,
    UNAVAILABLE,
    Headers,
    Refusal,
    check_framing,
    check_sender,
    check_type,
)

SEND_SECONDS = 300.0
"""Time after which a client that does not read its response is disconnected."""
BODY_BYTES = 4_000_000
"""Size of one request body: a prompt of a million tokens fits, and no model here has such a context."""

_TIMED_OUT = CLOSING_RESPONSE % b"408 Request Timeout"

Answer = Callable[[Refusal, Headers], ASGIApp]
"""Function that returns the response to a refused request with these headers."""


class Guard:
    """Passes to `app` only requests that no page of another site has sent, each with its whole body.

    WebSockets are not served.
    """

    def __init__(
        self,
        app: ASGIApp,
        answer: Answer,
        *,
        types: Collection[str] = (JSON,),
        body_bytes: int = BODY_BYTES,
        loopback: bool = True,
        port: int | None = None,
    ) -> None:
        """Guard `app`.

        Args:
            app: the application.
            answer: returns the response to a refused request.
            types: content types of the bodies that it takes.
            body_bytes: largest body.
            loopback: True if only this machine can reach the server.
            port: port that clients must name; None for any, such as that of a tunnel.
        """
        self._app, self._answer, self._types, self._body_bytes = app, answer, types, body_bytes
        self._loopback, self._port = loopback, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        try:
            check_framing(scope.get("raw_path", b"/").decode("latin-1"), headers)
            await self.check(scope, headers)
            passed_on = await self._with_body(scope, receive, headers)
        except Refusal as refusal:
            await self._answer(refusal, headers)(scope, receive, send)
        except ClientDisconnect:
            return
        else:
            await self._app(scope, passed_on, send)

    async def check(self, scope: Scope, headers: Headers) -> None:
        """Check the sender of a request. Raises Refusal."""
        check_sender(headers, loopback=self._loopback, port=self._port)
        # Pages send forms without asking for permission, and always with their origin.
        if FORM in self._types and scope["method"] not in ("GET", "HEAD") and "origin" not in dict(headers):
            raise Refusal(403, "A request that changes something must come from a page of this site.")

    async def _with_body(self, scope: Scope, receive: Receive, headers: Headers) -> Receive:
        """Read the body and return a `receive` that gives it whole. Raises Refusal, ClientDisconnect."""
        check_type(headers, self._types, scope["path"][:100])
        too_large = Refusal(413, f"The request body is larger than {self._body_bytes} bytes.")
        if int(dict(headers).get("content-length", "0")) > self._body_bytes:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in Request(scope, receive).stream():
                    body += part
                    if len(body) > self._body_bytes:
                        raise too_large
        except TimeoutError:
            raise Refusal(408, f"The request body was not sent within {BODY_SECONDS:.0f} seconds.") from None
        waiting: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replayed() -> Message:
            return waiting.pop() if waiting else await receive()

        return replayed


def server_of(guard: Guard) -> uvicorn.Server:
    """Return a server for a guarded application, which listens on the sockets that it is started with."""
    # Log errors only: strangers could fill the disk with warnings about requests that are not HTTP.
    config = uvicorn.Config(
        guard, http=BoundedConnection, ws="none", log_level="error", access_log=False, timeout_graceful_shutdown=1
    )
    return uvicorn.Server(config)


class BoundedConnection(H11Protocol):  # type: ignore[misc]  # uvicorn is untyped to mypy here.
    """uvicorn's connection, with limits that it lacks: time to send the head of a request, and to read the response.

    With more than `CONNECTIONS`, the one that has sent no head for longest is closed.
    """

    _head: asyncio.TimerHandle | None = None
    _send: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # Writing pauses as soon as anything is unsent, since even a closed transport waits for ever to send it all.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > CONNECTIONS and not self._close_oldest_silent():
            transport.write(UNAVAILABLE)
            transport.close()
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop("_head")
        self._stop("_send")
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._send = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("_send")
        super().resume_writing()

    def _watch_head(self) -> None:
        """Start the timer with the connection or the first byte of a request; later bytes do not extend it."""
        if self.conn.their_state is not h11.IDLE:
            self._stop("_head")
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self._time_out)

    def _close_oldest_silent(self) -> bool:
        """Close the connection that has been without a request head for longest; return False if there is none."""
        deadlines = {other: other._head.when() for other in self.connections if other._head is not None}
        if deadlines:
            min(deadlines, key=deadlines.__getitem__)._time_out()
        return bool(deadlines)

    def _time_out(self) -> None:
        self._stop("_head")
        idle = self.cycle is None or self.cycle.response_complete
        if self.conn.their_state is h11.IDLE and idle and not self.transport.is_closing():
            self.transport.write(_TIMED_OUT)
            self.transport.close()

    def _stop(self, timer: Literal["_head", "_send"]) -> None:
        if (handle := getattr(self, timer)) is not None:
            handle.cancel()
            setattr(self, timer, None)
