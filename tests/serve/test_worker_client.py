"""Calls of the API server to its worker, when the worker refuses them or never responds."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from serve.api.errors import RequestError
from serve.api.worker_client import LOST, LOST_CODE, PIECE_END, TIMEOUT_SECONDS, WorkerClient
from tests.serve.clock import MovableClock, running_clock
from tests.serve.running import PATIENCE_SECONDS, environment
from tests.support.raw_server import RawServer, Request, Write, http
from tests.support.waiting import becomes_true

PIECE = b'{"text": "One", "error_code": 0}' + PIECE_END
MORE_THAN_THE_TIMEOUT = TIMEOUT_SECONDS + 2
"""Seconds; aiohttp rounds long timeouts up to whole seconds."""
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
LOST_PIECE = {
    "text": LOST,
    "error_code": LOST_CODE,
    "error": {"message": LOST, "type": "server_error", "code": LOST_CODE},
}


class StalledWorker:
    """Worker that sends `beginning` to every request, and then nothing until it is closed."""

    def __init__(self, beginning: bytes) -> None:
        self._beginning = beginning
        self._end = threading.Event()
        self.server = RawServer(self._answer)

    def _answer(self, request: Request, write: Write) -> None:
        write(self._beginning)
        self._end.wait()

    @property
    def url(self) -> str:
        return f"http://{self.server.host}"

    def __enter__(self) -> "StalledWorker":
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self.server.__exit__()


async def pieces(client: WorkerClient) -> list[dict[str, Any]]:
    return await rest_of(client.stream({"model": "base"}, client.url))


async def rest_of(stream: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [piece async for piece in stream]


async def generated(client: WorkerClient) -> Any:
    return await client.fetch(f"{client.url}/worker_generate", {"model": "base"}, "")


async def refusal_of_fetch(client: WorkerClient) -> tuple[int, str]:
    with pytest.raises(RequestError) as refusal:
        await client.fetch(f"{client.url}/list_models", None, "models")
    return refusal.value.status, refusal.value.message


async def refusal_of_ask(client: WorkerClient) -> tuple[int, str]:
    with pytest.raises(RequestError) as refusal:
        await client.ask("/provenance")
    return refusal.value.status, refusal.value.message


def run_with_client(url: str, test: Callable[[MovableClock, WorkerClient], Coroutine[Any, Any, Any]]) -> Any:
    """Return the result of `test` for a client of the worker at `url`."""

    async def run() -> Any:
        client = WorkerClient(url, "key")
        try:
            return await test(running_clock(), client)
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=MovableClock) as runner:
        return runner.run(run())


@pytest.mark.parametrize(
    ("call", "result"),
    [
        (pieces, [LOST_PIECE]),
        (generated, {"text": LOST, "error_code": LOST_CODE}),
        (refusal_of_fetch, (503, LOST)),
        (refusal_of_ask, (503, LOST)),
    ],
    ids=["stream", "whole answer", "fact", "asked"],
)
def test_a_worker_that_never_answers_counts_as_lost(
    call: Callable[[WorkerClient], Coroutine[Any, Any, Any]], result: Any
) -> None:
    async def test(loop: MovableClock, client: WorkerClient) -> Any:
        calling = asyncio.create_task(call(client))
        await loop.wait_until(lambda: bool(worker.server.requests))
        loop.advance(MORE_THAN_THE_TIMEOUT)
        return await calling

    with StalledWorker(b"") as worker:
        assert run_with_client(worker.url, test) == result


def test_a_stream_that_stalls_ends_with_a_failure() -> None:
    async def test(loop: MovableClock, client: WorkerClient) -> None:
        stream = client.stream({"model": "base"}, client.url)
        assert await anext(stream) == {"text": "One", "error_code": 0}
        rest = asyncio.create_task(rest_of(stream))
        loop.advance(MORE_THAN_THE_TIMEOUT)
        assert await rest == [LOST_PIECE]

    with StalledWorker(STREAM_HEAD + PIECE) as worker:
        run_with_client(worker.url, test)


@pytest.mark.parametrize("status", ["401 Unauthorized", "500 Internal Server Error"])
def test_a_refused_stream_is_an_error_and_not_an_empty_answer(status: str) -> None:
    async def test(_: MovableClock, client: WorkerClient) -> list[dict[str, Any]]:
        return await pieces(client)

    with RawServer(lambda _, write: write(http(status, b'{"detail": "no"}'))) as worker:
        assert run_with_client(f"http://{worker.host}", test) == [LOST_PIECE]


API_SERVER = """
import argparse, asyncio, gc, socket, sys
import aiohttp
from serve.api import openai_api
from serve.private import Private

async def main():
    listening = socket.create_server(("127.0.0.1", 0))
    settings = argparse.Namespace(
        worker=sys.argv[1], hand_over=False, loopback=True, socket=listening.detach()
    )
    serving = asyncio.create_task(openai_api.serve(settings, Private(worker_key="key", marker="marker")))
    await asyncio.to_thread(sys.stdin.read)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    # FastChat turns sys.stdout into a log.
    print([item.closed for item in gc.get_objects() if isinstance(item, aiohttp.ClientSession)], file=sys.__stdout__)

asyncio.run(main())
"""


def test_an_api_server_that_ends_closes_its_connections_to_the_worker(tmp_path: Path) -> None:
    with RawServer(lambda _, write: write(http("200 OK", b"{}"))) as worker:
        process = subprocess.Popen(
            [sys.executable, "-c", API_SERVER, f"http://{worker.host}"],
            cwd=tmp_path,  # FastChat writes a log there.
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        connected = becomes_true(lambda: bool(worker.requests))
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert connected, errors
    assert output == "[True]\n", errors
