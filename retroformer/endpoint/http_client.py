"""The HTTP client of this project: a deadline around each exchange, a limit of its size, and the user's network.

Proxies, certificates and keys are those of the environment's variables; one that cannot be followed is a ConfigError
that names it. This machine is never asked through a proxy.
"""

import asyncio
import importlib.util
import ipaddress
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import certifi
import httpx

from retroformer.endpoint.compression import Decompressor, UnreadableBody
from retroformer.endpoint.secrets.redaction import keep_secret, redact
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError

LARGEST_ANSWER_BYTES = 16_000_000
"""Largest response, decompressed: ten times the longest completion with log-probabilities of every token."""
_PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
_CERTIFICATES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_DIR")
_IDLE_CONNECTIONS = 100
_LOOKUP_SECONDS = 1.0
"""Time beyond the deadline, after which a thread that looks up a name is left behind."""


class NoAnswer(Exception):
    """An exchange that failed; the message goes on from the name of the server."""

    def __init__(self, what: str, *, is_lost: bool = False) -> None:
        super().__init__(what)
        self.is_lost = is_lost
        """True if the connection failed, which may pass."""


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def parsed(self) -> object:
        """Return the JSON of a response, or its text if it is none, whatever type the server states.

        Raises ValueError, RecursionError.
        """
        looks_like_json = self.text.lstrip("\ufeff \t\r\n").startswith(("{", "["))
        return json.loads(self.content) if looks_like_json else self.text


async def fetch(
    method: str,
    url: str,
    seconds: float,
    *,
    headers: Mapping[str, str] | None = None,
    largest: int = LARGEST_ANSWER_BYTES,
    **options: Any,
) -> Answer:
    """Send a request and return the whole response, which must end within `seconds`.

    Raises:
        NoAnswer: it did not arrive, or not in time, or is larger than `largest` bytes.
        ConfigError: a variable of the environment names no usable proxy or certificates.
    """
    try:
        # The client's own timeout would restart at every byte.
        async with asyncio.timeout(seconds), http_client(url, headers, timeout=None, largest=largest) as client:
            return await exchange(client, method, url, **options)
    except TimeoutError:
        raise NoAnswer(f"gave no answer within {seconds:.3g} s") from None


async def exchange(client: httpx.AsyncClient, method: str, url: str, **options: Any) -> Answer:
    """Send a request and return the whole response, however long it takes. Raises NoAnswer."""
    try:
        response = await client.request(method, url, **options)
        return Answer(response.status_code, response.headers, response.content)
    except UnreadableBody as error:
        raise NoAnswer(f"answered {error}") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        lost = isinstance(error, httpx.HTTPError)
        raise NoAnswer(f"cannot be reached: {type(error).__name__}: {reason_of(error)}", is_lost=lost) from None


def reason_of(error: BaseException) -> str:
    """Return the system's reason for a failure, or the library's words without secrets if there is none."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            return redact(str(cause.reason if cause.strerror is None else cause.strerror))
        if isinstance(cause, OSError) and cause.errno and cause.errno > 0:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return redact(" ".join(str(error).split())) or type(error).__name__


def fetch_now(method: str, url: str, seconds: float, **options: Any) -> Answer:
    """Do what `fetch` does, from synchronous code, also where an event loop runs. Raises NoAnswer, ConfigError."""
    answer: Future[Answer] = Future()

    def work() -> None:
        try:
            answer.set_result(asyncio.run(fetch(method, url, seconds, **options)))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, name="exchange", daemon=True).start()
    try:
        return answer.result(seconds + _LOOKUP_SECONDS)
    except TimeoutError:
        raise NoAnswer(f"gave no answer within {seconds:.3g} s") from None


def http_client(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float | None,
    largest: int = LARGEST_ANSWER_BYTES,
) -> httpx.AsyncClient:
    """Return a client for this address, with any number of connections. Raises ConfigError.

    Redirects are followed, but a body goes to no other host (NoAnswer). No response is larger than `largest` bytes
    (UnreadableBody), decompressed, whoever reads it.
    """
    way = route(url)
    return httpx.AsyncClient(
        headers={"Accept-Encoding": "gzip"} | dict(headers or {}),
        timeout=timeout,
        # A server could fill every later request with its cookies.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        limits=httpx.Limits(max_keepalive_connections=_IDLE_CONNECTIONS),
        proxy=way.proxy,
        verify=way.trusted,
        trust_env=False,
        follow_redirects=True,
        event_hooks={"response": [_check_redirect, partial(_limit, largest)]},
    )


async def _check_redirect(response: httpx.Response) -> None:
    """Refuse the redirect of a prompt to another origin. Raises NoAnswer."""
    if response.has_redirect_location and response.request.method not in ("GET", "HEAD"):
        there = response.url.join(response.headers["location"])
        if (there.scheme, there.netloc) != (response.url.scheme, response.url.netloc):
            raise NoAnswer(
                f"redirects to {there.scheme}://{there.netloc.decode()}, which gets no prompt: set the address to it"
            )


async def _limit(largest: int, response: httpx.Response) -> None:
    """Limit the body of a response. Raises UnreadableBody."""
    response.stream = _BoundedBody(response, largest)


class _BoundedBody(httpx.AsyncByteStream):
    """Body of a response, decompressed up to a limit. It raises UnreadableBody."""

    def __init__(self, response: httpx.Response, largest: int) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._stream = response.stream
        self._decompressor = Decompressor(response.headers.pop("content-encoding", ""), largest)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._stream:
            yield self._decompressor.decompress(chunk)
        self._decompressor.end()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Route(NamedTuple):
    """How an address is reached."""

    proxy: str | None
    trusted: ssl.SSLContext
    """Authorities of certificates; none for an address without encryption, so that no redirect to one is trusted."""


def route(url: str) -> Route:
    """Return the way to this address that the environment sets. Raises ConfigError."""
    proxy = proxy_for(url)
    encrypted = any(address.lower().startswith(("https:", "wss:")) for address in (url, proxy or ""))
    return Route(proxy, certificates() if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def read_key(variable: str) -> str:
    """Return the API key that the environment sets, hidden from now on; "" if it sets none. Raises ConfigError."""
    key = os.environ.get(variable, "").strip()  # Keys from files end with a line feed.
    keep_secret(key)
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{variable} has a character that no HTTP header takes: set it to the key alone.")
    return key


def proxy_for(url: str) -> str | None:
    """Return the address of the proxy that the environment sets for this one; None without one. Raises ConfigError."""
    try:
        address = urlsplit(url)
        host, port = (address.hostname or "").removesuffix("."), address.port
    except ValueError:
        return None  # The client says what is wrong with it.
    scheme = {"ws": "http", "wss": "https"}.get(address.scheme.lower(), address.scheme.lower())
    if _is_this_machine(host) or _is_excepted(host, port or (443 if scheme == "https" else 80)):
        return None
    for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"):
        if value := os.environ.get(name, "").strip():
            return _checked_proxy(name, value)
    return None


def _is_this_machine(host: str) -> bool:
    """Return True for a name or address of this machine in any form, also 0.0.0.0, which servers print as theirs."""
    with suppress(OSError):
        host = socket.inet_ntoa(socket.inet_aton(host))  # It also reads forms such as 127.1.
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f".{host}".endswith(".localhost")
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def _checked_proxy(name: str, value: str) -> str:
    value = value if "://" in value else f"http://{value}"
    shown = f"{name}={SecretUrl(value)}"
    try:
        proxy = urlsplit(value)
        valid = proxy.scheme.lower() in _PROXY_SCHEMES and bool(proxy.hostname) and (proxy.port or True)
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{shown} is not the address of a proxy: write it as in http://HOST:PORT, or unset {name}.")
    if proxy.scheme.lower().startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ConfigError(f"{shown} needs a package: run `pip install socksio`, or unset {name}.")
    return value


def _is_excepted(host: str, port: int) -> bool:
    """Return True if NO_PROXY names this host: by name, domain, address, network or `*`, each also with a port."""
    for entry in re.split(r"[\s,]+", os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""):
        name = entry.lower().rpartition("://")[2]
        if match := re.fullmatch(r"(\[.*\]|[^:]*):(\d+)", name):
            name, its_port = match[1], int(match[2])
            if its_port != port:
                continue
        if name == "*" or _is_in_network(host, name):
            return True
        domain = name.removeprefix("*").removeprefix(".")
        if domain and (host == domain or host.endswith(f".{domain}")):
            return True
    return False


def _is_in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network.strip("[]"), strict=False)
    except ValueError:
        return False


def certificates() -> ssl.SSLContext:
    """Return the authorities that the environment sets, or else those of certifi. Raises ConfigError."""
    return _authorities(tuple((name, path) for name in _CERTIFICATES if (path := os.environ.get(name))))


@cache
def _authorities(named: tuple[tuple[str, str], ...]) -> ssl.SSLContext:
    """Return these authorities, cached for all clients: reading them takes 0.05 seconds. Raises ConfigError."""
    if not named:
        return ssl.create_default_context(cafile=certifi.where())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name, path in named:
        try:
            folders = [Path(folder).is_dir() for folder in path.split(os.pathsep)]
            if name == "SSL_CERT_DIR" or any(folders):
                if not any(folders):
                    raise FileNotFoundError
                context.load_verify_locations(capath=path)
            else:
                context.load_verify_locations(cafile=path)
        except OSError:  # An SSLError is one, too.
            raise ConfigError(f"{name} names {path!r}, which holds no certificates: correct or unset {name}.") from None
    return context
