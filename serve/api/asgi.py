"""ASGI middleware of the HTTP applications, outermost first: keys, readiness, whole bodies, cancellation.

Each answers the requests that it refuses itself, before the application behind it runs.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retroformer.loopback import is_loopback

from ..probe import HEALTH
from .bounds import ANSWERS_AT_ONCE, BODIES_BYTES, BODY_BYTES, BODY_SECONDS
from .errors import RequestError


def _is_health(scope: Scope) -> bool:
    return scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD")


class KeyRequired:
    """Passes only requests with one of `keys` as a bearer token; passes all requests if there are no keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_http(scope):
            return
        if self._keys and not _is_health(scope) and not self._has_key(scope):
            refusal = RequestError(401, "This endpoint asks for an API key: send it as `Authorization: Bearer KEY`.")
            await refusal.answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(sent) != 1:
            return False
        scheme, _, token = sent[0].partition(b" ")
        # All keys are compared, each in constant time, so that the time reveals nothing about any key.
        matches = [hmac.compare_digest(token.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


class OwnNameRequired:
    """Refuses requests whose Host header is not a name of this server.

    It protects a server on loopback without keys against DNS rebinding: if a web page's host name resolves to
    127.0.0.1, the browser sees one origin and would let the page read the responses.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_http(scope):
            return
        host = Headers(scope=scope).get("host", "")
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if is_loopback(name.lower().removesuffix(".")):
            await self._app(scope, receive, send)
            return
        message = "This endpoint answers to `localhost` and loopback addresses only: set serve.api_key_env to open it."
        await RequestError(421, message).answer(scope, receive, send)


class ReadyRequired:
    """Refuses every request except health checks with status 503 until `ready` returns True."""

    def __init__(self, app: ASGIApp, ready: Callable[[], bool]) -> None:
        self._app = app
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (_is_health(scope) or self._ready()):
            await RequestError(503, "The models are being loaded.").answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


class WholeBody:
    """Reads the whole body of a request, within limits, before the application behind it runs.

    Refuses with status 413 if the body is larger than `BODY_BYTES`, 408 if it does not arrive in time, and 503 if the
    bodies of all requests together are too large.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    await self._read(scope, receive, parts)
            except TimeoutError:
                refusal = RequestError(408, f"The request body was not sent within {BODY_SECONDS:.0f} seconds.")
                await refusal.answer(scope, receive, _closing(send))
                return
            except RequestError as refusal:
                await refusal.answer(scope, receive, _closing(send))
                return
            except ClientLeft:
                return
            parts[:] = [b"".join(parts)]
            await self._app(scope, _after(parts[0], receive), send)
        finally:
            self._held_bytes -= sum(map(len, parts))

    async def _read(self, scope: Scope, receive: Receive, parts: list[bytes]) -> None:
        declared = Headers(scope=scope).get("content-length", "0")
        if declared.isdigit() and (len(declared) > 20 or int(declared) > BODY_BYTES):
            raise self._too_large()
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part, more = message.get("body", b""), message.get("more_body", False)
            parts.append(part)
            size += len(part)
            self._held_bytes += len(part)
            if size > BODY_BYTES:
                raise self._too_large()
            if self._held_bytes > BODIES_BYTES:
                raise RequestError(503, "The request bodies of all clients together are too large just now.")

    def _too_large(self) -> RequestError:
        return RequestError(413, f"The request body is larger than {BODY_BYTES} bytes.")


class ClientLeft(Exception):
    """Raised when a client closed its connection before its request was complete."""


def _after(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the whole `body` first, then the messages of `receive`."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return first.pop() if first else await receive()

    return next_message


def _closing(send: Send) -> Send:
    """Return a `send` that adds `Connection: close`: the rest of the request body will not be read."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return closing


class StopWhenClientLeaves:
    """Cancels the handler of a request whose connection has ended.

    Otherwise a request that does not stream would be computed to its end although its client has left.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages: asyncio.Queue[Message] = asyncio.Queue()
        handler = asyncio.ensure_future(self._app(scope, messages.get, send))
        listener = asyncio.create_task(_listen(receive, messages))
        try:
            await asyncio.wait({handler, listener}, return_when=asyncio.FIRST_COMPLETED)
            if not handler.done():
                handler.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await handler
        finally:
            handler.cancel()
            listener.cancel()


class AnswerLimit:
    """Counts the answers in progress and refuses more than `ANSWERS_AT_ONCE` at once with status 429.

    Handlers call `scope["reserve_answers"]` with the number of answers to a request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._reserved = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reserved = 0

        def reserve(answers: int) -> None:
            nonlocal reserved
            if self._reserved + answers > ANSWERS_AT_ONCE:
                raise RequestError(
                    429, f"{self._reserved} answers are being written, and the limit is {ANSWERS_AT_ONCE}."
                )
            reserved += answers
            self._reserved += answers

        try:
            # Starlette, too, passes the state of a request in its scope.
            await self._app({**scope, "reserve_answers": reserve}, receive, send)
        finally:
            self._reserved -= reserved


async def _listen(receive: Receive, messages: asyncio.Queue[Message]) -> None:
    """Forward messages until the client leaves."""
    while True:
        message = await receive()
        await messages.put(message)
        if message["type"] == "http.disconnect":
            return


def _is_http(scope: Scope) -> bool:
    """Return True for HTTP. WebSockets and lifespan events are not served."""
    return bool(scope["type"] == "http")
