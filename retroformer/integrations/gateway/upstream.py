"""Forwards calls to the provider: bodies byte for byte, the status, and all headers but hop-by-hop ones."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from retroformer.endpoint.compression import ENCODINGS
from retroformer.endpoint.http_client import reason_of, route
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError, EndpointFailure

RUN_HEADERS = ("x-retroformer-run", "x-retroformer-task")
"""Headers that name a run and its task; the provider does not get them."""
_CONNECTION_HEADERS = {
    "connection",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
"""Headers that concern one connection (RFC 9110, section 7.6.1), and those that the client library writes."""
_LIBRARY_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
LONGEST_LINE_BYTES = 65_536
"""Longest request or header line, of the agent and of the provider."""
_CONNECT_SECONDS = 30.0
LARGEST_BYTES = 64_000_000
"""Largest body that is read, decompressed."""
Body = bytes | aiohttp.StreamReader | None


class Upstream:
    """Connections to the provider; it is made within an event loop."""

    def __init__(self, url: SecretUrl) -> None:
        """Prepare them. Raises ConfigError if a variable of the environment names no usable proxy or certificates."""
        self.url = url
        address, self._credentials = url.split_user()
        address, _, self._query = address.partition("?")
        self._address = address.rstrip("/")
        self._route = route(address)
        if self._route.proxy is not None and not self._route.proxy.lower().startswith("http"):
            proxy = SecretUrl(self._route.proxy)
            raise ConfigError(f"The gateway cannot use the proxy {proxy}: set HTTPS_PROXY to one of HTTP.")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            # An answer may take any time: the agent has its own limit.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            skip_auto_headers=_LIBRARY_HEADERS,
            max_line_size=LONGEST_LINE_BYTES,
            max_field_size=LONGEST_LINE_BYTES,
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def answer(
        self, request: web.BaseRequest, path: str, body: Body, *, changed: bool = False, read: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request to this path, with its query, below the provider's address, and yield the answer's head.

        Args:
            request: the agent's request, which gives method and headers.
            path: path and query as the agent wrote them, percent-encoded.
            body: the body, which is forwarded as it comes.
            changed: True if the body is not the agent's; it is not compressed then.
            read: True if the answer is to be read on the side.

        Raises:
            EndpointFailure: the provider cannot be reached, or ends the connection before it answers.
        """
        headers = _request_headers(request, changed=changed, read=read)
        headers.update(self._credentials)
        path, mark, query = path.partition("?")
        queries = "&".join(part for part in (query, self._query) if part)
        target = URL(f"{self._address}{path}{'?' if queries or mark else ''}{queries}", encoded=True)
        try:
            answer = await self._session.request(
                request.method,
                target,
                headers=headers,
                data=body,
                allow_redirects=False,
                proxy=self._route.proxy,
                ssl=self._route.trusted,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise EndpointFailure(
                f"The provider at {self.url} cannot be reached ({reason_of(error)}): check --upstream and the network."
            ) from error
        try:
            if answer.status < 200:
                raise EndpointFailure(
                    f"The provider at {self.url} wants to switch to another protocol: HTTP is spoken here."
                )
            yield answer
        finally:
            # A connection whose answer was not read to its end is closed, so that the provider stops.
            answer.release() if answer.content.at_eof() else answer.close()


def end_to_end_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers that are not about a single connection."""
    copy = CIMultiDict(headers)
    named = {name.strip().lower() for value in copy.getall(hdrs.CONNECTION, []) for name in value.split(",")}
    for name in _CONNECTION_HEADERS | named:
        copy.popall(name, None)
    return copy


def _request_headers(request: web.BaseRequest, *, changed: bool, read: bool) -> CIMultiDict[str]:
    headers = end_to_end_headers(request.headers)
    for name in RUN_HEADERS:
        headers.popall(name, None)
    if changed:
        headers.popall(hdrs.CONTENT_LENGTH, None)
        headers.popall(hdrs.CONTENT_ENCODING, None)
    if read and hdrs.ACCEPT_ENCODING in headers:
        # An answer in another encoding could not be read on the side.
        offered = [part.strip() for part in headers[hdrs.ACCEPT_ENCODING].split(",")]
        readable = [part for part in offered if part.partition(";")[0].strip().lower() in (*ENCODINGS, "identity")]
        headers[hdrs.ACCEPT_ENCODING] = ", ".join(readable) or "identity"
    return headers
