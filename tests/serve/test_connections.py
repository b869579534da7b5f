"""Clients that send what they should not, or nothing, or do not read: others are answered all the same."""

import asyncio
import json
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from serve.bounds import ANSWERS, CONNECTIONS, QUEUE
from serve.latest import Latest
from tests.serve.running import BODY_BYTES, KEYS, Endpoint, becomes_true, send, status_of

PATIENCE_SECONDS = 300.0
"""Longer than anything takes here on a loaded machine."""
HEADERS = {"Authorization": f"Bearer {KEYS[0]}"}
HEAD = f"Host: localhost\nContent-Type: application/json\nAuthorization: Bearer {KEYS[0]}\n"


def connect(endpoint: Endpoint) -> socket.socket:
    host, port = endpoint.url.removeprefix("http://").removesuffix("/v1").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS)


def answers(endpoint: Endpoint) -> bool:
    page = {"model": "base", "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 1}
    answer = httpx.post(f"{endpoint.url}/chat/completions", json=page, headers=HEADERS, timeout=PATIENCE_SECONDS)
    return answer.status_code == 200


@pytest.fixture
def many_files() -> Iterator[None]:
    """Leave to open more files than an endpoint takes connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} open files, and the test needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_silent_connections_keep_nobody_out(keyed: Endpoint, many_files: None) -> None:
    with ExitStack() as connections:
        for _ in range(CONNECTIONS + 200):
            connections.enter_context(connect(keyed))
        assert httpx.get(f"{keyed.url.removesuffix('/v1')}/health", timeout=PATIENCE_SECONDS).status_code == 200
        assert answers(keyed)


def test_the_head_of_a_request_that_trickles_in_is_cut_off(keyed: Endpoint) -> None:
    with connect(keyed) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nX: ")
        ended = threading.Event()

        def trickle() -> None:
            while not ended.wait(0.5):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

        threading.Thread(target=trickle, daemon=True).start()
        try:
            assert b" 408 " in connection.recv(1000)
        finally:
            ended.set()


def test_a_head_without_end_is_refused(keyed: Endpoint) -> None:
    assert status_of(send(keyed, f"GET /health HTTP/1.1\nX: {'x' * 100_000}")) == 400


def test_a_body_without_end_is_refused_at_its_limit(endpoint: Endpoint) -> None:
    with connect(endpoint) as connection:
        head = HEAD.replace("\n", "\r\n").encode()
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + head + b"\r\n")
        try:
            for _ in range(100 * BODY_BYTES // 1000):
                connection.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        except OSError:
            pass  # It need not take all.
        assert status_of(connection.recv(1000)) == 413


def test_a_body_of_someone_without_a_key_is_not_read(keyed: Endpoint) -> None:
    with connect(keyed) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n")
        assert status_of(connection.recv(1000)) == 401


def test_requests_in_one_stream_are_answered_one_after_another(keyed: Endpoint) -> None:
    body = json.dumps({"model": "base", "prompt": "One", "max_tokens": 1, "n": 0})
    request = f"POST /v1/completions HTTP/1.1\n{HEAD}Content-Length: {len(body)}\n\n".replace("\n", "\r\n") + body
    last = f"GET /v1/models HTTP/1.1\n{HEAD}Connection: close\n\n"
    answer = send(keyed, "", (request * 300 + last.replace("\n", "\r\n")).encode())
    assert (answer.count(b"HTTP/1.1 400 "), answer.count(b"HTTP/1.1 200 ")) == (300, 1)


def test_more_answers_than_the_queue_holds_are_refused_for_now(keyed: Endpoint) -> None:
    def asked(tokens: int) -> dict[str, Any]:
        return {"model": "base", "prompt": "One, two,", "n": ANSWERS, "max_tokens": tokens, "temperature": 1}

    body = json.dumps(asked(450))
    head = f"POST /v1/completions HTTP/1.1\n{HEAD}Content-Length: {len(body)}\n\n".replace("\n", "\r\n")
    refused: list[httpx.Response] = []

    def is_refused() -> bool:
        answer = httpx.post(f"{keyed.url}/completions", json=asked(1), headers=HEADERS, timeout=PATIENCE_SECONDS)
        refused.append(answer)
        return answer.status_code != 200

    with ExitStack() as connections:
        for _ in range(QUEUE // ANSWERS):
            connections.enter_context(connect(keyed)).sendall((head + body).encode())
        assert becomes_true(is_refused)
        assert (refused[-1].status_code, int(refused[-1].headers["retry-after"]) > 0) == (429, True)
        assert httpx.get(f"{keyed.url.removesuffix('/v1')}/health").status_code == 200
    # Those who asked for them have left.
    assert becomes_true(lambda: keyed.load(KEYS[0]) == 0)
    assert not is_refused()


def test_of_outputs_that_nobody_fetches_the_last_is_kept() -> None:
    async def fetched() -> list[int]:
        outputs = Latest[int](asyncio.get_running_loop())
        for number in range(3):
            outputs.put(number)
        first = await outputs.get()
        outputs.put(3)
        return [first, await outputs.get()]

    assert asyncio.run(fetched()) == [2, 3]
