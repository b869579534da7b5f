"""Headers and checks that keep the site local and harmless, whatever text it shows."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With "no-referrer" browsers hide the origin of this site's own forms, too.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guards:
    """Middleware that answers only requests to this machine's names and from this site's own pages.

    A page of another site reaches a loopback port through the browser of whoever opens it. Its requests name another
    host (DNS rebinding) or carry another origin, and both are refused.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(Headers(scope=scope), scope["method"])
        if refusal is not None:
            await PlainTextResponse(refusal, 403)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _refusal(self, headers: Headers, method: str) -> str | None:
        if headers.get("host") not in self._hosts:
            return "This site answers only to its own address on this machine."
        origin = headers.get("origin")
        if origin is not None and origin not in self._origins:
            return "This site answers only its own pages."
        # Browsers send the origin with every request that changes something.
        if method not in ("GET", "HEAD") and origin is None:
            return "A request that changes something must come from a page of this site."
        return None
