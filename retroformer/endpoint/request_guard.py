"""Where every HTTP server of this project listens, and what it refuses, whatever library it is served with.

Any web page can send requests to a port of this machine through the browser of whoever opens it. They name another host
(DNS rebinding), come from another origin, or have a content type for which browsers ask no permission.
"""

import contextlib
import ipaddress
import os
import re
import resource
import socket
from collections.abc import Collection, Sequence

from retroformer.errors import ServiceError

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
HEAD_SECONDS = 20.0
"""Time for the head of a request, after which the client is disconnected."""
BODY_SECONDS = 120.0
"""Time for the body of a request: enough for 4 MB at 300 kbit/s."""
CONNECTIONS = 2048
"""Open client connections: twice the queue of a model server, so that health checks are answered while it is full."""
RETRY_SECONDS = 5
"""Value of Retry-After. Clients honour up to a minute."""
CLOSING_RESPONSE = b"HTTP/1.1 %b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
UNAVAILABLE = CLOSING_RESPONSE % (b"503 Service Unavailable\r\nRetry-After: %d" % RETRY_SECONDS)
_OPEN_FILES = 16_384

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::([0-9]+))?", re.ASCII)
Headers = Sequence[tuple[str, str]]
"""Headers of a request, each with its name in lower case."""


class Refusal(Exception):
    """Raised to answer a request with an error status; `field` is the name of the parameter at fault."""

    def __init__(self, status: int, message: str, field: str | None = None, *, close: bool = False) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field
        # Of such a request the rest is not read, or cannot be distinguished from the next one.
        self.headers = {"Connection": "close"} if close or status in (408, 413) else {}
        """Headers of the response."""


def address_of(host: str, port: int) -> str:
    """Return the URL under which this machine reaches a server that listens on a host, or on all (`0.0.0.0`, `::`)."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(port: int, host: str = "127.0.0.1", option: str = "--port") -> socket.socket:
    """Return a listening socket; port 0 takes a free one. The process may have enough open files for its connections.

    Raises ServiceError if the port is in use, or the host is not an address of this machine. It names the `option`.
    """
    _allow_many_files()
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ServiceError(
            f"Port {port} of {host} cannot be used ({reason}): stop the process that uses it, or choose another with "
            f"{option} (0 for any free one)."
        ) from None


def _allow_many_files() -> None:
    """Raise this process's limit of open files to `_OPEN_FILES`, as far as the machine allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_loopback(host: str) -> bool:
    """Return True for a name or address of this machine that no other machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_framing(target: str, headers: Headers) -> None:
    """Refuse a request whose target or length another server might read otherwise. Raises Refusal."""
    if not target.startswith("/"):
        raise Refusal(
            400, "The request target must be a path that begins with a slash, not a whole address.", close=True
        )
    names = {name for name, _ in headers}
    if {"content-length", "transfer-encoding"} <= names:
        raise Refusal(400, "The request has both Content-Length and Transfer-Encoding: send one of them.", close=True)


def check_sender(headers: Headers, *, loopback: bool, port: int | None = None) -> None:
    """Refuse a request that a page of another site may have sent. Raises Refusal.

    Args:
        headers: those of the request.
        loopback: True if only this machine can reach the server, so that the host is a name of this machine.
        port: port that the host must name; None for any.
    """
    hosts = [value.strip().lower() for name, value in headers if name == "host"]
    host = hosts[0] if len(hosts) == 1 else ""
    match = _HOST.fullmatch(host)
    name = (match[1] or match[2]).removesuffix(".") if match else ""
    elsewhere = match is not None and port is not None and match[3] != str(port)
    if loopback and (elsewhere or not is_loopback(name)):
        raise Refusal(421, "This server answers to `localhost` and loopback addresses only, under its own port.")
    own = {f"http://{host}"} if loopback else {f"http://{host}", f"https://{host}"}
    for header, allowed in (("origin", own), ("sec-fetch-site", {"same-origin", "none"})):
        if {value.strip().lower() for name, value in headers if name == header} - allowed:
            raise Refusal(403, "This server answers no page of another site.")


def check_type(headers: Headers, types: Collection[str], path: str) -> None:
    """Refuse a body of another type than these. Raises Refusal."""
    if not any(name == "transfer-encoding" or (name == "content-length" and value != "0") for name, value in headers):
        return
    given = [value.partition(";")[0].strip().lower() for name, value in headers if name == "content-type"]
    if len(given) != 1 or given[0] not in types:
        shown = f"the content type is {', '.join(given)[:80]!a}" if given else "there is no content type"
        raise Refusal(415, f"{path} takes only bodies of the type {' or '.join(types)}, and {shown}.")
