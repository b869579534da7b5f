"""How the API server reaches its worker: in place of the two functions by which FastChat's reaches a controller's.

FastChat's own carry no secret, give no reason where a connection is lost, and open a new client for every call.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from itertools import count
from typing import Any

import aiohttp
from fastapi.responses import JSONResponse

from serve.errors import RequestError, headers

TIMEOUT_SECONDS = 3600.0
"""A request may wait long behind others."""
PROBE_TIMEOUT_SECONDS = 10.0
PROBE_PAUSE_SECONDS = 1.0
START_PROBE_PAUSE_SECONDS = 0.2
PIECE_END = b"\0"
"""Behind every piece of a stream, as FastChat's workers send it."""
LOST = "The connection to the worker was lost; it is started again if it has ended."
LOST_CODE = 50301
"""As FastChat's codes are made: the status of HTTP and two digits."""

answer_numbers: ContextVar[Callable[[], int]] = ContextVar("answer_numbers", default=lambda: 0)
"""Gives each answer to a request its number among those to the same prompt, from 0, in the order they are begun."""

logger = logging.getLogger(__name__)


def numbers_up_to(answers: int) -> Callable[[], int]:
    """0 to `answers` - 1 again and again: for each prompt of a request, one number for each of its answers."""
    numbers = count()
    return lambda: next(numbers) % answers


class WorkerClient:
    """Calls the worker at `url` with the key that it asks for. Made and used in one event loop."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        # A connection that is kept may be closed by the worker just when it is used again.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            headers={"Authorization": f"Bearer {key}"},
        )

    async def close(self) -> None:
        """End its connections; it is not used afterwards."""
        await self._session.close()

    async def fetch(self, url: str, pload: Any = None, name: str | None = None) -> Any:
        """FastChat's `fetch_remote`: what `url` answers to `pload`, as bytes, JSON (""), or one field of it.

        Raises:
            RequestError: the worker does not answer.
        """
        generates = url.endswith("/worker_generate")
        try:
            async with self._session.post(url, json=_numbered(pload) if generates else pload) as response:
                output = await response.read()
            if response.status != 200:
                raise RequestError(503, f"The worker answered {response.status} to {response.url.path}.")
        except (aiohttp.ClientError, TimeoutError):  # The session's own timeout is no ClientError.
            if generates:  # FastChat reads failures of these calls from their answers.
                return {"text": LOST, "error_code": LOST_CODE}
            raise RequestError(503, LOST) from None
        if name is None:
            return output
        answer = json.loads(output)
        return answer if name == "" else answer[name]

    async def stream(self, payload: Mapping[str, Any], worker_addr: str) -> AsyncIterator[dict[str, Any]]:
        """FastChat's `generate_completion_stream`: the pieces of one answer; a failure is the last piece."""
        try:
            async with self._session.post(f"{worker_addr}/worker_generate_stream", json=_numbered(payload)) as response:
                response.raise_for_status()
                buffer = b""
                async for part in response.content.iter_any():
                    *pieces, buffer = (buffer + part).split(PIECE_END)
                    for piece in filter(None, pieces):
                        yield _with_openai_error(json.loads(piece))
        except (aiohttp.ClientError, TimeoutError):
            yield _with_openai_error({"text": LOST, "error_code": LOST_CODE})

    async def ask(self, path: str, body: Any = None) -> JSONResponse:
        """The worker's own answer at `path`: to GET without a `body`, otherwise to POST.

        Raises:
            RequestError: the worker does not answer.
        """
        try:
            method = "GET" if body is None else "POST"
            async with self._session.request(method, self.url + path, json=body) as answer:
                if answer.content_type != "application/json":
                    raise RequestError(500, f"The worker answered {answer.status} to {path}.")
                return JSONResponse(await answer.json(), answer.status, headers(answer.status))
        except (aiohttp.ClientError, TimeoutError):
            raise RequestError(503, LOST) from None

    async def is_ready(self) -> bool:
        """Whether the worker says so now."""
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_SECONDS)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self._session.get(f"{self.url}/health", timeout=timeout) as answer:
                return answer.status == 200
        return False


class Readiness:
    """What the last question for the worker's health brought."""

    def __init__(self) -> None:
        self.now = False
        self.once = False
        """Whether it has been ready. While it is started again requests wait for it: its socket is still there."""

    async def watch(self, worker: WorkerClient) -> None:
        """Ask for ever."""
        while True:
            self.now = await worker.is_ready()
            self.once |= self.now
            await asyncio.sleep(PROBE_PAUSE_SECONDS if self.once else START_PROBE_PAUSE_SECONDS)


def _numbered(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {**payload, "answer": answer_numbers.get()()}


def _with_openai_error(piece: dict[str, Any]) -> dict[str, Any]:
    """Clients of OpenAI's know a failure in a stream by its `error`."""
    if not piece["error_code"]:
        return piece
    return {**piece, "error": {"message": piece["text"], "type": "server_error", "code": piece["error_code"]}}
