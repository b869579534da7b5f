"""What stands around the HTTP applications: a limit to request bodies, and an end to work that nobody waits for."""

import asyncio
import contextlib
import json

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOO_LARGE = 413


class BodyLimit:
    """Refuses a request whose body is larger than `limit_bytes` with status 413, before it is parsed."""

    def __init__(self, app: ASGIApp, limit_bytes: int) -> None:
        self._app = app
        self._limit = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        message = f"The request body is larger than {self._limit} bytes (serve.body_bytes)."
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._limit:
            return await _refuse(send, message)
        received = 0

        async def counted() -> Message:
            nonlocal received
            part = await receive()
            received += len(part.get("body", b""))
            if received > self._limit:
                raise HTTPException(TOO_LARGE, message)
            return part

        return await self._app(scope, counted, send)


class StopWhenClientLeaves:
    """Cancels the handler of a request whose client has closed the connection.

    Without it a plain (not streaming) request would be computed to its end for nobody.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
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


async def _listen(receive: Receive, messages: asyncio.Queue[Message]) -> None:
    """Pass messages on until the client leaves."""
    while True:
        message = await receive()
        await messages.put(message)
        if message["type"] == "http.disconnect":
            return


async def _refuse(send: Send, message: str) -> None:
    body = json.dumps({"object": "error", "message": message, "code": TOO_LARGE}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": TOO_LARGE, "headers": headers})
    await send({"type": "http.response.body", "body": body})
