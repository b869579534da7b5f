"""Ways to reach an agent: a Python function, a program that reads and writes JSON lines, or an HTTP address.

Each takes a task and the advice and returns what the agent returned, unchecked. An agent that crashes, hangs or answers
garbage raises EnvironmentFailure, with the cause.
"""

import asyncio
import copy
import inspect
import json
from collections.abc import Callable
from typing import Any, Protocol

from retroformer.environments.agent.program import LARGEST_ANSWER_BYTES, shortened
from retroformer.errors import EnvironmentFailure
from retroformer.files.bounded import size


class Caller(Protocol):
    """Agent that plays one attempt after another."""

    def __call__(self, task: dict[str, Any], advice: str) -> Any:
        """Return what the agent returned. Raises EnvironmentFailure."""
        ...


class Function:
    """Python function in this process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._loop = asyncio.Runner()
        """One event loop for all attempts: a client that the agent keeps is bound to it."""

    def __call__(self, task: dict[str, Any], advice: str) -> Any:
        try:
            # A copy: an attempt may change its task.
            result = self._function(copy.deepcopy(task), advice=advice)
            return self._loop.run(_awaited(result)) if inspect.isawaitable(result) else result
        except EnvironmentFailure:
            raise
        except BaseException as error:  # Foreign code: whatever it raises, SystemExit too, belongs to this attempt.
            raise EnvironmentFailure(f"The agent raised {type(error).__name__}: {shortened(str(error))}.") from error


async def _awaited(result: Any) -> Any:
    return await result


class HttpAgent:
    """HTTP service that plays one attempt per POST request."""

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._url, self._timeout = url, timeout_seconds

    def __call__(self, task: dict[str, Any], advice: str) -> Any:
        return asyncio.run(self._post({"task": task, "advice": advice}))

    async def _post(self, body: dict[str, Any]) -> Any:
        import httpx

        try:
            # httpx's own timeout restarts with every received byte.
            async with (
                asyncio.timeout(self._timeout),
                httpx.AsyncClient(timeout=None) as client,
                client.stream("POST", self._url, json=body) as answer,
            ):
                content = bytearray()
                async for part in answer.aiter_bytes():
                    content += part
                    if len(content) > LARGEST_ANSWER_BYTES:
                        limit = size(LARGEST_ANSWER_BYTES)
                        raise EnvironmentFailure(f"The agent answered more than {limit}, the limit.")
        except TimeoutError:
            raise EnvironmentFailure(f"The agent gave no answer within {self._timeout:g} s.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EnvironmentFailure(f"The agent cannot be reached: {type(error).__name__}: {error}.") from error
        text = content.decode(errors="replace")
        if answer.status_code != httpx.codes.OK:
            raise EnvironmentFailure(f"The agent answered {answer.status_code}: {shortened(text)}")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise EnvironmentFailure(f"The agent answered something that is not JSON: {shortened(text)!r}.") from None
