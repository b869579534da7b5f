"""A real OpenAI-compatible server on loopback. Its answers are a pure function of the request; it can misbehave.

`python -m tests.support.endpoint [REQUESTS]` runs one in a process of its own: it prints its address, and dies without
a word in the middle of request number REQUESTS.
"""

import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from retroformer.endpoint.request_guard import address_of

_HANG_SECONDS = 30.0
_HURRY = "retry-after-ms: 5\r\n"
"""Pause that the server requests in Retry-After; short, since clients wait for it."""


class Behaviour(StrEnum):
    """Treatment of a request by the server."""

    WELL = "answers"
    ERROR = "answers 500"
    BUSY = "answers 429 and asks for a short pause"
    BUSY_WITHOUT_PAUSE = "answers 429"
    GARBAGE = "answers a web page"
    HUGE = "answers 10 MB of blanks"
    TRICKLE = "sends a byte per second"
    ELSEWHERE = "redirects to a file"
    BROKEN_JSON = "answers half of a JSON object"
    NESTED = "answers JSON of endless depth"
    UNDECODABLE = "answers JSON in no known encoding"
    REFUSED = "answers 400 in words of its own"
    UNAUTHORIZED = "answers 401"
    AWAY = "answers 503 and asks for an hour of rest"
    BINARY = "answers bytes that are no text"
    NO_COMPLETION = "answers JSON that is no completion"
    NO_CHOICES = "answers a completion without choices"
    NO_TEXT = "answers a completion without text"
    SILENT = "accepts and never answers"
    CUT = "closes in the middle of the answer"


MISBEHAVIOURS = tuple(Behaviour)[1:]

Body = dict[str, Any]
_ROOM = re.compile(r"^(?:Room|Not searched): (.*)$", re.MULTILINE)
_SEEN = re.compile(r"you see ([^\n]*)\.")
_NEXT_THOUGHT = re.compile(r"Thought (\d+):\s*$")
_THING = re.compile(r"([a-z]+ \d+)(?:-(\d+))?")


def prompt_of(body: Body) -> str:
    return "\n".join(turn["content"] or "" for turn in body["messages"]) if "messages" in body else str(body["prompt"])


def moody(body: Body, came_before: int) -> Behaviour:
    """Return up to two faulty behaviours before the answer, determined by the request alone."""
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    nonsense = (Behaviour.NO_CHOICES, Behaviour.BROKEN_JSON, Behaviour.BINARY, Behaviour.GARBAGE)
    return nonsense[digest[came_before] % 4] if came_before < digest[-1] % 3 else Behaviour.WELL


def reply_to(body: Body) -> str:
    """Return advice with a place of the room, or the next step of an attempt, chosen by a hash of prompt and seed."""
    prompt = prompt_of(body)
    digest = hashlib.sha256(f"{prompt}|{body.get('seed')}".encode()).digest()
    places = _places(prompt)
    place = places[int.from_bytes(digest[:4]) % len(places)] if places else "countertop 1"
    if acting := _NEXT_THOUGHT.search(prompt):
        return f" I look further.\nAction {acting[1]}: go to {place}"
    return f"Look in {place} first."


def _places(prompt: str) -> list[str]:
    rooms = _ROOM.findall(prompt) or _SEEN.findall(prompt)
    places = []
    for name, last in _THING.findall(rooms[-1] if rooms else ""):
        kind, first = name.split(" ")
        places += [f"{kind} {number}" for number in range(int(first), int(last or first) + 1)]
    return places


class Endpoint:
    """Server that runs in a thread of this process and records its requests."""

    def __init__(self, reply: Callable[[Body], str | Body] = reply_to, host: str = "127.0.0.1") -> None:
        """Create a server; `reply` returns the text of an answer, or the assistant's whole message."""
        self.behaviour = Behaviour.WELL
        self.script: deque[Behaviour] = deque()
        """Behaviours for the next requests, one each; after that `behaviour` applies."""
        self.usage: Body | None = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        self.latency_seconds = 0.0
        self.requests: list[Body] = []
        self.answered = 0
        """Number of requests answered in any way."""
        self.mood: Callable[[Body, int], Behaviour] | None = None
        """Function from a request and the number of equal ones before it to the behaviour, in place of `behaviour`."""
        self.provenance: str | None = None
        """JSON that a server of this project answers to GET /provenance; None: this is none."""
        self.key = ""
        """API key without which it says 401 there; empty: it requires none."""
        self.before_answer: Callable[[int], None] = lambda number: None
        self._reply, self._host, self._closing = reply, host, threading.Event()
        self._server = (_ServerOfIPv6 if ":" in host else _Server)((host, 0), _Handler)
        self._server.endpoint = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"{address_of(self._host, self._server.server_port)}/v1"

    def __enter__(self) -> "Endpoint":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, body: Body) -> bytes | None:
        """Return the raw answer; None closes the connection without one."""
        came_before = self.requests.count(body)
        self.requests.append(body)
        self.before_answer(len(self.requests))
        usual = self.mood(body, came_before) if self.mood else self.behaviour
        behaviour = self.script.popleft() if self.script else usual
        if behaviour is Behaviour.SILENT:
            self._closing.wait(_HANG_SECONDS)
            return None
        time.sleep(self.latency_seconds)
        answer = _answers(behaviour, json.dumps(self._completion(path, body)).encode())
        return _Slowly(answer) if behaviour is Behaviour.TRICKLE else answer

    def send(self, answer: bytes, write: Callable[[bytes], object]) -> None:
        """Send an answer, byte by byte if it is to be slow."""
        if not isinstance(answer, _Slowly):
            write(answer)
            return
        for byte in answer:
            write(bytes([byte]))
            if self._closing.wait(1.0):
                return

    def _completion(self, path: str, body: Body) -> Body:
        reply = self._reply(body)
        message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
        chat = path.partition("?")[0].endswith("/chat/completions")
        said = {"message": message} if chat else {"text": message["content"]}
        answer = {
            "id": "completion-1",
            "object": "chat.completion" if chat else "text_completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "finish_reason": "stop"} | said],
        }
        return answer | ({"usage": self.usage} if self.usage is not None else {})


class _Slowly(bytes):
    """Answer that is sent byte by byte."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    endpoint: Endpoint

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that gave up or were killed, which the tests cause on purpose."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _ServerOfIPv6(_Server):
    address_family = socket.AF_INET6


def require_ipv6() -> None:
    """Skip the test on a machine without the address ::1."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no server can listen on ::1: {error}")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = self.server.endpoint.answer(self.path, body)
        if answer is not None:
            self.server.endpoint.send(answer, self.wfile.write)
        self.server.endpoint.answered += 1
        self.close_connection = answer is None or b"connection: close" in answer

    def do_GET(self) -> None:
        endpoint = self.server.endpoint
        provenance = endpoint.provenance if self.path == "/provenance" else None
        answer = _http("200 OK" if provenance else "404 Not Found", (provenance or "{}").encode())
        wrong_key = endpoint.key and self.headers["Authorization"] != f"Bearer {endpoint.key}"
        if wrong_key or endpoint.behaviour is Behaviour.UNAUTHORIZED:
            answer = _answers(Behaviour.UNAUTHORIZED, answer)
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def _answers(behaviour: Behaviour, good: bytes) -> bytes:
    html = b"<html>Welcome to the captive portal</html>"
    silent = b'{"id": "1", "choices": [{"message": {"role": "assistant", "content": null}}]}'
    return {
        Behaviour.ERROR: _http("500 Internal Server Error", b'{"error": {"message": "out of memory"}}', more=_HURRY),
        Behaviour.BUSY: _http("429 Too Many Requests", b'{"error": {"message": "slow down"}}', more=_HURRY),
        Behaviour.REFUSED: _http("400 Bad Request", b'{"detail": "the name is not free"}'),
        Behaviour.BUSY_WITHOUT_PAUSE: _http("429 Too Many Requests", b"{}"),
        Behaviour.HUGE: _http("200 OK", b" " * 10_000_000),
        Behaviour.ELSEWHERE: _http("307 Temporary Redirect", b"", more="location: file:///etc/hostname\r\n"),
        Behaviour.UNAUTHORIZED: _http("401 Unauthorized", b'{"error": {"message": "no such key"}}'),
        Behaviour.AWAY: _http("503 Service Unavailable", b"{}", more="retry-after: 3600\r\n"),
        Behaviour.NESTED: _http("200 OK", b"[" * 100_000),
        Behaviour.UNDECODABLE: _http("200 OK", b'\xff\xfe{"a'),
        Behaviour.GARBAGE: _http("200 OK", html, kind="text/html"),
        Behaviour.BROKEN_JSON: _http("200 OK", good[: len(good) // 2]),
        Behaviour.BINARY: _http("200 OK", b"\xff\xfe\x81" * 50),
        Behaviour.NO_COMPLETION: _http("200 OK", b'["not", "a", "completion"]'),
        Behaviour.NO_CHOICES: _http("200 OK", b'{"id": "1", "object": "chat.completion", "choices": []}'),
        Behaviour.NO_TEXT: _http("200 OK", silent),
        Behaviour.CUT: _http("200 OK", good, promised=len(good) + 100),
    }.get(behaviour, _http("200 OK", good))


def _http(
    status: str, content: bytes, kind: str = "application/json", promised: int | None = None, more: str = ""
) -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {promised or len(content)}\r\n{more}"
    if promised:
        head += "connection: close\r\n"
    return f"{head}\r\n".encode() + content


@contextmanager
def endpoint(script: Iterable[Behaviour] = ()) -> Iterator[Endpoint]:
    """Run a server that follows `script`, then behaves well."""
    with Endpoint() as opened:
        opened.script.extend(script)
        yield opened


def _main(arguments: list[str]) -> None:
    with Endpoint() as opened:
        if arguments:
            last = int(arguments[0])
            opened.before_answer = lambda number: os._exit(1) if number >= last else None
        sys.stdout.write(f"{opened.url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    _main(sys.argv[1:])
