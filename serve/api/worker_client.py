"""HTTP client of the API server for its worker, in place of FastChat's two functions for controllers and workers.

FastChat's functions send no secret, give no reason when a connection is lost, and open a new client for every call.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from typing import Any, TypeAlias

import aiohttp
from fastapi.responses import JSONResponse

from .errors import RequestError, headers

TIMEOUT_SECONDS = 3600.0
"""Limit of one request, which may wait long behind others."""
PROBE_TIMEOUT_SECONDS = 10.0
PROBE_PAUSE_SECONDS = 1.0
START_PROBE_PAUSE_SECONDS = 0.2
PIECE_END = b"\0"
"""Delimiter after every piece of a stream, as in FastChat."""
LOST = "The connection to the worker was lost; it is started again if it has ended."
LOST_CODE = 50301
"""Error code in FastChat's form: the HTTP status and two digits."""

answer_numbers: ContextVar[Callable[[], int]] = ContextVar("answer_numbers", default=lambda: 0)
"""Function that numbers the answers to one prompt of a request from 0, in the order in which they begin."""

DrawnToken: TypeAlias = tuple[int, float]
"""Id of a token of an answer, and its log-probability under the model itself."""
_drawn: ContextVar[list[DrawnToken] | None] = ContextVar("drawn", default=None)

logger = logging.getLogger(__name__)


def numbers_up_to(answers: int) -> Callable[[], int]:
    """Return a function that counts from 0 to `answers` - 1 repeatedly: once for each prompt of a request."""
    numbers = count()
    return lambda: next(numbers) % answers


@contextlib.contextmanager
def drawn_tokens() -> Iterator[Sequence[DrawnToken]]:
    """Have the answer that is made in this context noted token by token, since FastChat passes on its text alone."""
    tokens = list[DrawnToken]()
    token = _drawn.set(tokens)
    try:
        yield tokens
    finally:
        _drawn.reset(token)


class WorkerClient:
    """Calls the worker at `url` with its key. Created and used in one event loop."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        # The worker might close a kept connection just when it is used again, hence `force_close`.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
            headers={"Authorization": f"Bearer {key}"},
        )

    async def close(self) -> None:
        """Close the connections; the client must not be used afterwards."""
        await self._session.close()

    async def fetch(self, url: str, pload: Any = None, name: str | None = None) -> Any:
        """Replace FastChat's `fetch_remote`: return the response to `pload` as bytes, JSON (`name` "") or one field.

        Raises:
            RequestError: the worker does not answer.
        """
        generates = url.endswith("/worker_generate")
        try:
            async with self._session.post(url, json=_numbered(pload) if generates else pload) as response:
                output = await response.read()
            if response.status != 200:
                raise RequestError(503, f"The worker answered {response.status} to {response.url.path}.")
        except (aiohttp.ClientError, TimeoutError):  # The session's own timeout is not a ClientError.
            if generates:  # For these calls FastChat reads failures from the response.
                return {"text": LOST, "error_code": LOST_CODE}
            raise RequestError(503, LOST) from None
        if name is None:
            return output
        answer = json.loads(output)
        if generates and (tokens := _drawn.get()) is not None:
            tokens += zip(answer.get("token_ids", ()), answer.get("token_logprobs", ()), strict=True)
        return answer if name == "" else answer[name]

    async def stream(self, payload: Mapping[str, Any], worker_addr: str) -> AsyncIterator[dict[str, Any]]:
        """Replace FastChat's `generate_completion_stream`: yield the pieces of an answer; a failure is the last."""
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
        """Return the worker's own response at `path`: to GET without a `body`, otherwise to POST.

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
        """Return True if the worker reports that it is healthy."""
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_SECONDS)
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with self._session.get(f"{self.url}/health", timeout=timeout) as answer:
                return answer.status == 200
        return False


class Readiness:
    """Result of the latest health check of the worker."""

    def __init__(self) -> None:
        self.is_ready = False
        self.was_ready = False
        """True once it has been ready. Requests wait during a restart of the worker: its socket stays open."""

    async def watch(self, worker: WorkerClient) -> None:
        """Check the worker's health until cancelled."""
        while True:
            self.is_ready = await worker.is_ready()
            self.was_ready |= self.is_ready
            await asyncio.sleep(PROBE_PAUSE_SECONDS if self.was_ready else START_PROBE_PAUSE_SECONDS)


def _numbered(payload: Mapping[str, Any]) -> dict[str, Any]:
    return {**payload, "answer": answer_numbers.get()(), "return_tokens": _drawn.get() is not None}


def _with_openai_error(piece: dict[str, Any]) -> dict[str, Any]:
    """Add `error` to a failed piece: OpenAI clients recognize a failure in a stream by this field."""
    if not piece["error_code"]:
        return piece
    return {**piece, "error": {"message": piece["text"], "type": "server_error", "code": piece["error_code"]}}
