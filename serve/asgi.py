"""What stands around the HTTP applications, outermost first: keys, readiness, whole bodies, an end to idle work.

Each refuses what it does not let through with an answer of its own, before anything behind it runs.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.bounds import BODIES_BYTES, BODY_SECONDS, QUEUE
from serve.errors import RequestError
from serve.loopback import is_loopback
from serve.probe import HEALTH


def _is_health(scope: Scope) -> bool:
    return scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD")


class KeyRequired:
    """Lets only those requests through that show one of `keys` as a bearer token, and all where there are no keys."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_http(scope):
            return
        if self._keys and not _is_health(scope) and not self._shown(scope):
            refusal = RequestError(401, "This endpoint asks for an API key: send it as `Authorization: Bearer KEY`.")
            await refusal.answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _shown(self, scope: Scope) -> bool:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(sent) != 1:
            return False
        scheme, _, token = sent[0].partition(b" ")
        # All are compared, each in constant time: how long it takes says nothing about any key.
        matches = [hmac.compare_digest(token.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


class OwnNameRequired:
    """Refuses requests that call this server by a name that is not its own.

    It stands before a server on loopback that asks for no key: a web page whose name its author has turned to
    127.0.0.1 (DNS rebinding) is of the same origin to its browser, which then lets it read the answers.
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
        message = (
            "This endpoint answers to `localhost` and addresses of loopback only: set serve.api_key_env to open it."
        )
        await RequestError(421, message).answer(scope, receive, send)


class ReadyRequired:
    """Refuses every request but those for health with status 503 until `ready` says that there is a worker."""

    def __init__(self, app: ASGIApp, ready: Callable[[], bool]) -> None:
        self._app = app
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not (_is_health(scope) or self._ready()):
            await RequestError(503, "The models are being loaded.").answer(scope, receive, send)
            return
        await self._app(scope, receive, send)


class WholeBody:
    """Reads a request's body before anything behind it runs, and lets it have no more than is allowed.

    Status 413 where the body is larger than `limit_bytes`, 408 where it does not come in time, 503 where the bodies of
    all requests together are too many.
    """

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes
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
        if declared.isdigit() and (len(declared) > 20 or int(declared) > self._limit):
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
            if size > self._limit:
                raise self._too_large()
            if self._held_bytes > BODIES_BYTES:
                raise RequestError(503, "The request bodies of all clients together are too large just now.")

    def _too_large(self) -> RequestError:
        return RequestError(413, f"The request body is larger than {self._limit} bytes (serve.body_bytes).")


class ClientLeft(Exception):
    """A client closed its connection before its request was there."""


def _after(body: bytes, receive: Receive) -> Receive:
    """First the whole `body`, then what `receive` brings."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return first.pop() if first else await receive()

    return next_message


def _closing(send: Send) -> Send:
    """Also tell the client that the connection ends: what is left of its body is not read."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        await send(message)

    return closing


class StopWhenClientLeaves:
    """Cancels the handler of a request whose connection has ended.

    Without it a plain (not streaming) request would be computed to its end for nobody.
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


class Places:
    """Counts the answers that are being written, and refuses more than `QUEUE` at once with status 429."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._taken = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken = 0

        def take(answers: int) -> None:
            nonlocal taken
            if self._taken + answers > QUEUE:
                raise RequestError(429, f"{self._taken} answers are being written, and at most {QUEUE} may be.")
            taken += answers
            self._taken += answers

        try:
            # As Starlette does with what belongs to a request.
            await self._app({**scope, "take_places": take}, receive, send)
        finally:
            self._taken -= taken


async def _listen(receive: Receive, messages: asyncio.Queue[Message]) -> None:
    """Pass messages on until the client leaves."""
    while True:
        message = await receive()
        await messages.put(message)
        if message["type"] == "http.disconnect":
            return


def _is_http(scope: Scope) -> bool:
    """Nothing else is served: no WebSockets, and no events of the server's own life."""
    return bool(scope["type"] == "http")
