"""Clients that send invalid data or nothing, or do not read, do not keep other clients from being served."""

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from retroformer.endpoint.request_guard import CONNECTIONS
from serve.answers import ANSWERS_AT_ONCE, LatestOutputs
from serve.engine.generation import Output
from serve.requests import ANSWERS
from tests.serve.running import KEYS, Endpoint, connect, http_request, send, status_of
from tests.support.waiting import becomes_true

PATIENCE_SECONDS = 300.0
"""Upper bound for anything here on a loaded machine."""
HEADERS = {"Authorization": f"Bearer {KEYS[0]}"}
HEAD = f"Host: localhost\nContent-Type: application/json\nAuthorization: Bearer {KEYS[0]}\n"


def answers(endpoint: Endpoint) -> bool:
    body = {"model": "base", "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 1}
    answer = http_request("POST", f"{endpoint.url}/chat/completions", json=body, headers=HEADERS)
    return answer.status_code == 200


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files above the connection limit of an endpoint."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} open files, and the test needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_silent_connections_do_not_block_other_clients(keyed: Endpoint, many_files: None) -> None:
    with ExitStack() as connections:
        for _ in range(CONNECTIONS + 200):
            connections.enter_context(connect(keyed))
        assert http_request("GET", f"{keyed.url.removesuffix('/v1')}/health").status_code == 200
        assert answers(keyed)


def test_an_endless_request_head_is_refused(keyed: Endpoint) -> None:
    assert status_of(send(keyed, f"GET /health HTTP/1.1\nX: {'x' * 100_000}")) == 400


def test_the_body_of_a_client_without_a_key_is_not_read(keyed: Endpoint) -> None:
    with connect(keyed) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n")
        assert status_of(connection.recv(1000)) == 401


def test_requests_in_one_stream_are_answered_one_after_another(keyed: Endpoint) -> None:
    body = json.dumps({"model": "base", "prompt": "One", "max_tokens": 1, "n": 0})
    request = f"POST /v1/completions HTTP/1.1\n{HEAD}Content-Length: {len(body)}\n\n".replace("\n", "\r\n") + body
    last = f"GET /v1/models HTTP/1.1\n{HEAD}Connection: close\n\n"
    answer = send(keyed, "", (request * 300 + last.replace("\n", "\r\n")).encode())
    assert (answer.count(b"HTTP/1.1 400 "), answer.count(b"HTTP/1.1 200 ")) == (300, 1)


def test_more_answers_than_the_queue_holds_are_refused_temporarily(keyed: Endpoint) -> None:
    def body_for(tokens: int) -> dict[str, Any]:
        return {"model": "base", "prompt": "One, two,", "n": ANSWERS, "max_tokens": tokens, "temperature": 1}

    body = json.dumps(body_for(450))
    head = f"POST /v1/completions HTTP/1.1\n{HEAD}Content-Length: {len(body)}\n\n".replace("\n", "\r\n")
    refused: list[httpx.Response] = []

    def is_refused() -> bool:
        answer = http_request("POST", f"{keyed.url}/completions", json=body_for(1), headers=HEADERS)
        refused.append(answer)
        return answer.status_code != 200

    with ExitStack() as connections:
        for _ in range(ANSWERS_AT_ONCE // ANSWERS):
            connections.enter_context(connect(keyed)).sendall((head + body).encode())
        assert becomes_true(is_refused)
        assert (refused[-1].status_code, int(refused[-1].headers["retry-after"]) > 0) == (429, True)
        assert http_request("GET", f"{keyed.url.removesuffix('/v1')}/health").status_code == 200
    # Their clients have left.
    assert becomes_true(lambda: keyed.load(KEYS[0]) == 0)
    assert not is_refused()


def test_only_the_last_unfetched_output_of_each_answer_is_kept() -> None:
    async def fetched() -> list[dict[int, str]]:
        latest = LatestOutputs()
        for text in ("One", "One, two", "One, two, three"):
            latest.put(0, Output(text=text))
        latest.put(1, Output(text="Red"))
        first = await latest.get()
        latest.put(1, Output(text="Red, green"))
        return [{number: output.text for number, output in each.items()} for each in (first, await latest.get())]

    assert asyncio.run(fetched()) == [{0: "One, two, three", 1: "Red"}, {1: "Red, green"}]
