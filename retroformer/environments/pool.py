"""Environments in worker processes, so that one that hangs or crashes costs its own episodes and nothing else."""

import asyncio
import itertools
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from retroformer.environments.sections import EnvironmentSection
from retroformer.errors import EnvironmentFailure
from retroformer.records import Task, Transition
from retroformer.secret_url import WITH_SECRETS

_LOGGER = logging.getLogger(__name__)

_LINE_BYTES = 2**24
"""The longest answer that is read from a worker."""


class EnvironmentPool:
    """A few processes that share the episodes in flight; a dead one is replaced at the next episode."""

    def __init__(self, section: EnvironmentSection, seed: int, processes: int, timeout_seconds: float) -> None:
        self._section, self._seed, self._timeout = section, seed, timeout_seconds
        self._workers: list[_Worker | None] = [None] * processes
        self._opening = asyncio.Lock()
        self._episodes = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if worker is not None:
                await worker.stop()

    @asynccontextmanager
    async def episode(self, task: Task) -> AsyncIterator["PooledEpisode"]:
        """A place to play one task.

        Raises:
            EnvironmentFailure: no worker could be started.
        """
        worker, number = await self._least_busy(), next(self._episodes)
        worker.episodes.add(number)
        try:
            yield PooledEpisode(worker, number, task)
        finally:
            worker.episodes.discard(number)
            worker.forget(number)

    async def _least_busy(self) -> "_Worker":
        async with self._opening:
            for place, worker in enumerate(self._workers):
                if worker is not None and worker.dead:
                    await worker.stop()
                if worker is None or worker.dead:
                    self._workers[place] = await _Worker.start(self._section, self._seed, self._timeout)
            return min((worker for worker in self._workers if worker), key=lambda worker: len(worker.episodes))


class PooledEpisode:
    """One episode in one of the pool's processes."""

    def __init__(self, worker: "_Worker", number: int, task: Task) -> None:
        self._worker, self._number, self._task = worker, number, task

    async def reset(self) -> Transition:
        """Start the episode. Raises EnvironmentFailure."""
        return await self._worker.ask(self._number, {"task": self._task.model_dump()})

    async def step(self, action: str) -> Transition:
        """Do one action. Raises EnvironmentFailure."""
        return await self._worker.ask(self._number, {"action": action})


class _Worker:
    """One process, and the calls that wait for its answers."""

    def __init__(self, process: asyncio.subprocess.Process, timeout_seconds: float) -> None:
        self.episodes: set[int] = set()
        self.dead = False
        self._process, self._timeout = process, timeout_seconds
        self._calls = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, section: EnvironmentSection, seed: int, timeout_seconds: float) -> "_Worker":
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "retroformer.environments.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LINE_BYTES,
            )
        except OSError as error:
            raise EnvironmentFailure(f"No environment process could be started ({error}).") from error
        worker = cls(process, timeout_seconds)
        worker._send({"section": section.model_dump(mode="json", context=WITH_SECRETS), "seed": seed})
        return worker

    async def ask(self, episode: int, request: dict[str, Any]) -> Transition:
        call = next(self._calls)
        answered = self._waiting[call] = asyncio.get_running_loop().create_future()
        try:
            self._send(request | {"call": call, "episode": episode})
            answer = await asyncio.wait_for(answered, self._timeout)
        except TimeoutError:
            self._die()
            raise EnvironmentFailure(f"The environment did not answer within {self._timeout:g} s.") from None
        finally:
            self._waiting.pop(call, None)
        if "error" in answer:
            raise EnvironmentFailure(f"The environment failed: {answer['error']}")
        return Transition.model_validate(answer["transition"])

    def forget(self, episode: int) -> None:
        """Let the process use the episode's environment again; nobody waits for the answer."""
        if not self.dead:
            self._send({"call": next(self._calls), "episode": episode})

    async def stop(self) -> None:
        self._die()
        await self._process.wait()
        await self._reading

    def _send(self, request: dict[str, Any]) -> None:
        if self.dead:
            raise EnvironmentFailure("The environment process died.")
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                answer = json.loads(line)
                waiting = self._waiting.get(answer["call"])
                # A call that was given up a moment ago is done, but still listed.
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except ValueError as error:
            _LOGGER.warning("An environment process is stopped: it answered what is no answer (%s).", error)
        finally:
            self._die()

    def _die(self) -> None:
        self.dead = True
        if self._process.returncode is None:
            self._process.kill()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EnvironmentFailure("The environment process died."))
