"""Requests that no server of this project may serve: those of web pages of other sites, and malformed ones."""

import re
import socket
from typing import NamedTuple


class Target(NamedTuple):
    """A server, and a request with a body that it serves."""

    host: str
    """Address and port."""
    path: str
    body: bytes
    content_type: str = "application/json"
    headers: str = ""
    """Headers that the request needs anyway, each with its line end."""

    def request(
        self, *lines: str, host: str | None = None, content_type: str | None = None, path: str | None = None
    ) -> bytes:
        """Return the request with further lines in its head, or other values."""
        head = [
            f"POST {path or self.path} HTTP/1.1",
            f"Host: {self.host if host is None else host}",
            f"Content-Type: {self.content_type if content_type is None else content_type}",
            f"Content-Length: {len(self.body)}",
            *self.headers.splitlines(),
            *lines,
            "Connection: close",
        ]
        return "\r\n".join([*head, "", ""]).encode() + self.body


def attacks(target: Target) -> dict[str, tuple[bytes, int]]:
    """Return each attack with the status that refuses it."""
    port = target.host.partition(":")[2]
    sent = target.request
    chunks = b"\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(target.body), target.body)
    without_host = sent().replace(f"Host: {target.host}\r\n".encode(), b"")
    return {
        "another host": (sent(host="evil.example"), 421),
        "another host with the port": (sent(host=f"evil.example:{port}"), 421),
        "a host that begins as loopback": (sent(host=f"127.0.0.1.evil.example:{port}"), 421),
        "a subdomain of localhost": (sent(host=f"evil.localhost:{port}"), 421),
        "the address of all interfaces": (sent(host=f"0.0.0.0:{port}"), 421),
        "an IPv6 address of another machine": (sent(host=f"[2001:db8::1]:{port}"), 421),
        "a bracket without its end": (sent(host=f"[::1:{port}"), 421),
        "a port that is no number": (sent(host="127.0.0.1:evil.example"), 421),
        "no host": (without_host, 400),
        "an empty host": (sent(host=""), 421),
        "two hosts": (sent("Host: evil.example"), 400),
        "another origin": (sent("Origin: http://evil.example"), 403),
        "an opaque origin": (sent("Origin: null"), 403),
        "another port": (sent("Origin: http://127.0.0.1:1"), 403),
        "another name of this machine": (sent("Origin: http://127.0.0.2:" + port), 403),
        "another scheme": (sent(f"Origin: https://{target.host}"), 403),
        "two origins": (sent(f"Origin: http://{target.host}", "Origin: http://evil.example"), 403),
        "a page of another site": (sent("Sec-Fetch-Site: cross-site"), 403),
        "a page of another port": (sent("Sec-Fetch-Site: same-site"), 403),
        "a page in capitals": (sent("SEC-FETCH-SITE: Cross-Site"), 403),
        "text": (sent(f"Origin: http://{target.host}", content_type="text/plain"), 415),
        "JSON under another name": (sent(f"Origin: http://{target.host}", content_type="text/json"), 415),
        "a form with files": (sent(f"Origin: http://{target.host}", content_type="multipart/form-data"), 415),
        "two content types": (sent(f"Origin: http://{target.host}", "Content-Type: text/plain"), 415),
        "a whole address": (sent(path=f"http://{target.host}{target.path}"), 400),
        "two lengths": (sent("Transfer-Encoding: chunked").replace(b"\r\n\r\n" + target.body, chunks), 400),
    }


def statuses(host: str, request: bytes) -> list[int]:
    """Return the statuses of all responses to these bytes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answers(host, request))]


def answers(host: str, request: bytes) -> bytes:
    """Return all that a server sends for these bytes."""
    name, _, port = host.rpartition(":")
    with socket.create_connection((name, int(port)), timeout=60) as connection:
        connection.sendall(request)
        received = b""
        while part := connection.recv(65536):
            received += part
    return received


def may_be_read_by_pages(target: Target) -> bool:
    """Return True if a browser would show a page of another site an answer, or let it ask with a content type."""
    origin = "Origin: http://evil.example"
    sent = target.request(origin, "Access-Control-Request-Method: POST").replace(b"POST", b"OPTIONS", 1)
    return any(b"access-control" in answers(target.host, request).lower() for request in (sent, target.request(origin)))


def served_attacks(target: Target) -> dict[str, list[int]]:
    """Return the attacks that were not refused as they must be, with the statuses of the responses."""
    outcomes = {name: (statuses(target.host, request), status) for name, (request, status) in attacks(target).items()}
    # An HTTP library may refuse the malformed ones by itself.
    return {name: seen for name, (seen, status) in outcomes.items() if seen not in ([status], [400])}
