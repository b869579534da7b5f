"""What a request must pass before its handler runs: keys, host names, readiness, limits of time and size, JSON."""

import asyncio
import contextlib
import hmac
import json
import resource
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, Literal, TypeVar

import h11
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from retroformer.endpoint.loopback import is_loopback
from retroformer.files.text import surrogate_in_json

from .supervisor import HEALTH

CONNECTIONS = 2048
"""Open client connections: twice the queue, so that health checks are answered while the queue is full."""
BODY_BYTES = 4_000_000
"""Size of one request body: a prompt of a million tokens fits, and no model here has such a context."""
LOADING_SECONDS = 60.0
"""Time that a request waits for models that are being loaded, as after a restart."""
HEAD_SECONDS = 20.0
"""Time for the head of a request, after which the client is disconnected."""
BODY_SECONDS = 120.0
"""Time for the body of a request: enough for 4 MB at 300 kbit/s."""
SEND_SECONDS = 300.0
"""Time after which a client that does not read its response is disconnected."""
OPEN_FILES = 16_384
RETRY_SECONDS = 5
"""Value of Retry-After. Clients of this protocol honour up to a minute."""

_CLOSING_RESPONSE = b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_UNAVAILABLE = _CLOSING_RESPONSE % (b"503 Service Unavailable\r\nRetry-After: %d" % RETRY_SECONDS)
_TIMED_OUT = _CLOSING_RESPONSE % b"408 Request Timeout"

T = TypeVar("T")


class RequestError(Exception):
    """Raised to answer a request with an error status; `field` is the name of the parameter at fault."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 500 and self.status != 429 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.status}}

    @property
    def response(self) -> JSONResponse:
        """Response for the client."""
        headers = {"Retry-After": str(RETRY_SECONDS)} if self.status in (429, 503) else {}
        if self.status in (408, 413):
            headers["Connection"] = "close"  # The rest of the request will not be read.
        return JSONResponse(self.body, self.status, headers)


class Guards:
    """Refuses requests without one of the keys, under a foreign host name, or before the models are loaded.

    Health checks need no key. The check of the host name protects a server on loopback without keys against DNS
    rebinding: a web page whose host name resolves to 127.0.0.1 could read the responses.
    """

    def __init__(
        self,
        app: ASGIApp,
        loaded: "asyncio.Future[Any]",
        keys: Sequence[str] = (),
        *,
        loopback: bool = True,
        without_key: Collection[str] = (),
    ) -> None:
        """Guard `app`; `without_key` are paths that need no key, and `loopback` says if only this machine can ask."""
        self._app, self._loaded = app, loaded
        self._keys, self._without_key = [key.encode() for key in keys], without_key
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # WebSockets and lifespan events are not served.
        try:
            await self._check(scope)
        except RequestError as refusal:
            await refusal.response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        is_health = scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD")
        needs_key = bool(self._keys) and scope["path"] not in self._without_key
        if needs_key and not (is_health or self._has_key(scope)):
            raise RequestError(401, "This endpoint asks for an API key: send it as `Authorization: Bearer KEY`.")
        host = Headers(scope=scope).get("host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if self._loopback and not needs_key and not is_loopback(name.lower().removesuffix(".")):
            raise RequestError(
                421,
                "This endpoint answers to `localhost` and loopback addresses only: set serve.api_key_env to open it.",
            )
        if not is_health:
            await asyncio.wait([self._loaded], timeout=LOADING_SECONDS)
            if not self._loaded.done():
                raise RequestError(503, "The models are being loaded.")

    def _has_key(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = sent[0].partition(b" ") if len(sent) == 1 else (b"", b"", b"")
        # All keys are compared, each in constant time, so that the time reveals nothing about any key.
        matches = [hmac.compare_digest(token.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    NaN and infinities are accepted here and refused by the check of their field.

    Raises:
        RequestError: the body is too large or late; it is not JSON, by its type or its content, or not an object; a
            name is in it twice, or text that is not Unicode.
    """
    body = await _read_body(request)
    try:
        text = body.decode()
        parsed = json.loads(text, object_pairs_hook=_unique_names)
    except RecursionError:
        raise RequestError(400, "The request body is nested too deeply.") from None
    except ValueError as error:
        raise RequestError(400, f"The request body is not JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise RequestError(400, "The request body is not a JSON object.")
    if (path := surrogate_in_json(parsed, text)) is not None:
        field = shorten_name(path)
        raise RequestError(400, f"{field}: half a character (a lone surrogate) is not text.", field)
    return parsed


def _unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = shorten_name(next(name for name in names if names.count(name) > 1))
        raise RequestError(400, f"{duplicate} appears twice in one object.", duplicate)
    return parsed


def shorten_name(name: str) -> str:
    """Return a client's own name for something, shortened and in ASCII, as an error message may repeat it."""
    return name[:100].encode("ascii", "backslashreplace").decode()


async def _read_body(request: Request) -> bytes:
    # A browser sends other types on behalf of a web page without a CORS preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, f"{request.url.path} takes only bodies of the type application/json.")
    too_large = RequestError(413, f"The request body is larger than {BODY_BYTES} bytes.")
    if int(request.headers.get("content-length", "0")) > BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > BODY_BYTES:
                    raise too_large
    except TimeoutError:
        raise RequestError(408, f"The request body was not sent within {BODY_SECONDS:.0f} seconds.") from None
    return bytes(body)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which is cancelled if the client leaves (ClientDisconnect)."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue

    task, leaving = asyncio.create_task(work), asyncio.create_task(leave())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, leaving):
            each.cancel()
        await asyncio.wait({task, leaving})


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
            transport.write(_UNAVAILABLE)
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


def allow_many_files() -> None:
    """Raise this process's limit of open files to `OPEN_FILES`, as far as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
