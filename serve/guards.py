"""What a request to the models must pass before its handler runs: keys, readiness, JSON."""

import asyncio
import hmac
from collections.abc import Collection, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Scope

from retroformer.endpoint.request_guard import RETRY_SECONDS, Headers, Refusal
from retroformer.endpoint.server import Guard
from retroformer.files.text import RepeatedName, json_value, surrogate_in_json

from .supervisor import HEALTH

LOADING_SECONDS = 60.0
"""Time that a request waits for models that are being loaded, as after a restart."""

T = TypeVar("T")


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """Return the body of a refusal in OpenAI's form."""
    kind = "invalid_request_error" if refusal.status < 500 and refusal.status != 429 else "server_error"
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.field, "code": refusal.status}}


def refusal_response(refusal: Refusal, _: Headers = ()) -> JSONResponse:
    """Return the response to a refused request, whatever its headers."""
    retry = {"Retry-After": str(RETRY_SECONDS)} if refusal.status in (429, 503) else {}
    return JSONResponse(openai_error(refusal), refusal.status, refusal.headers | retry)


class Guards(Guard):
    """Refuses also requests without one of the keys, or before the models are loaded.

    Health checks need no key. A request with a key passes under any host name: no web page knows a key.
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
        super().__init__(app, refusal_response, loopback=loopback)
        self._loaded = loaded
        self._keys, self._without_key = [key.encode() for key in keys], without_key

    async def check(self, scope: Scope, headers: Headers) -> None:
        is_health = scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD")
        if not self._keys or scope["path"] in self._without_key:
            await super().check(scope, headers)
        elif not (is_health or self._has_key(headers)):
            raise Refusal(401, "This endpoint asks for an API key: send it as `Authorization: Bearer KEY`.")
        if not is_health:
            await asyncio.wait([self._loaded], timeout=LOADING_SECONDS)
            if not self._loaded.done():
                raise Refusal(503, "The models are being loaded.")

    def _has_key(self, headers: Headers) -> bool:
        sent = [value for name, value in headers if name == "authorization"]
        scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        # All keys are compared, each in constant time, so that the time reveals nothing about any key.
        matches = [hmac.compare_digest(token.strip().encode("latin-1"), key) for key in self._keys]
        return scheme.lower() == "bearer" and any(matches)


async def read_json(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    NaN and infinities are accepted here and refused by the check of their field.

    Raises:
        Refusal: the body is not JSON, or not an object; a name is in it twice, or text that is not Unicode.
    """
    try:
        text = (await request.body()).decode()
        parsed = json_value(text)
    except RecursionError:
        raise Refusal(400, "The request body is nested too deeply.") from None
    except RepeatedName as error:
        name = shorten_name(error.name)
        raise Refusal(400, f"{name} appears twice in one object.", name) from None
    except ValueError as error:
        raise Refusal(400, f"The request body is not JSON: {error}.") from None
    if not isinstance(parsed, dict):
        raise Refusal(400, "The request body is not a JSON object.")
    if (path := surrogate_in_json(parsed, text)) is not None:
        field = shorten_name(path)
        raise Refusal(400, f"{field}: half a character (a lone surrogate) is not text.", field)
    return parsed


def shorten_name(name: str) -> str:
    """Return a client's own name for something, shortened and in ASCII, as an error message may repeat it."""
    return name[:100].encode("ascii", "backslashreplace").decode()


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
        for started in (task, leaving):
            started.cancel()
        await asyncio.wait({task, leaving})
