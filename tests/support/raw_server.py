"""An HTTP server on loopback whose answers are written byte by byte by the test."""

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    """Request of a client."""

    path: str
    headers: dict[str, str]
    body: bytes


Write = Callable[[bytes], None]
Answer = Callable[[Request, Write], None]
"""Function that answers one request. Writing raises OSError if the client has left."""


class RawServer:
    """Server in threads of this process that records its requests and closes each connection after the answer."""

    def __init__(self, answer: Answer, certificate: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.left = threading.Event()
        """True if a client left before the end of its answer."""
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.raw = self
        if certificate is not None:
            self._server.socket = certificate.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/v1"

    def __enter__(self) -> "RawServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    raw: RawServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error; the handler records clients that left."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, body)
        self.server.raw.requests.append(request)
        self.close_connection = True
        try:
            self.server.raw.answer(request, self.connection.sendall)
        except OSError:
            self.server.raw.left.set()

    def do_GET(self) -> None:
        self.headers["Content-Length"] = "0"
        self.do_POST()

    def log_message(self, *_: object) -> None:
        pass


def http(status: str, content: bytes, *headers: str) -> bytes:
    """Return a whole HTTP response with a JSON body."""
    lines = [f"HTTP/1.1 {status}", "content-type: application/json", f"content-length: {len(content)}", *headers]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + content
