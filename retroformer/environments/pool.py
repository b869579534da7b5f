"""Environments in worker processes, so that one that hangs or crashes costs only its own episode.

A process answers one request at a time, and the time limit of a step starts with the step. A process that is stopped
because of one episode is replaced, and its other episodes are replayed up to where they were.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

from retroformer.endpoint.secrets.url import json_with_secrets
from retroformer.environments.section import EnvironmentSection
from retroformer.environments.worker_main import LINE_BYTES
from retroformer.errors import EnvironmentFailure
from retroformer.method.records import Task, Transition

_LOGGER = logging.getLogger(__name__)

STEP_SECONDS = 60.0
"""Time limit of a step, unless the section has a `longest_step_seconds`; after it the episode counts as invalid."""

_ENDING_SECONDS = 1.0
"""Time in which a process that has closed its output ends by itself."""

Request = dict[str, Any]


class EnvironmentPool:
    """Worker processes that share the episodes in flight; a dead one is replaced at the next episode."""

    def __init__(
        self, section: EnvironmentSection, seed: int, processes: int, timeout_seconds: float = STEP_SECONDS
    ) -> None:
        self._section, self._seed = section, seed
        self._timeout = section.longest_step_seconds or timeout_seconds
        self._processes, self._workers = processes, list[_WorkerProcess]()
        self._opening, self._closed = asyncio.Lock(), False
        self._episodes = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._opening:
            self._closed = True
            for worker in self._workers:
                await worker.stop()

    @contextlib.asynccontextmanager
    async def episode(self, task: Task) -> AsyncIterator["PooledEpisode"]:
        """Yield a place to play one task. Raises EnvironmentFailure."""
        number = next(self._episodes)
        episode = PooledEpisode(self, number, task, await self.join(number))
        try:
            yield episode
        finally:
            episode.leave()

    async def join(self, episode: int) -> "_WorkerProcess":
        """Assign the episode to the worker with the fewest episodes, and return it. Raises EnvironmentFailure."""
        async with self._opening:
            if self._closed:
                raise EnvironmentFailure("The environment processes are stopped.")
            for worker in [worker for worker in self._workers if worker.dead]:
                self._workers.remove(worker)
                await worker.stop()
            while len(self._workers) < self._processes:
                self._workers.append(await _WorkerProcess.start(self._section, self._seed, self._timeout))
            chosen = min(self._workers, key=lambda worker: len(worker.episodes))
            chosen.episodes.add(episode)
            return chosen


class PooledEpisode:
    """Episode in one of the pool's processes."""

    def __init__(self, pool: EnvironmentPool, number: int, task: Task, worker: "_WorkerProcess") -> None:
        self._pool, self._number, self._task, self._worker = pool, number, task, worker
        self._played: list[tuple[Request, Transition]] = []

    async def reset(self) -> Transition:
        """Start the episode. Raises EnvironmentFailure."""
        self._played = []
        return await self._do({"task": self._task.model_dump()})

    async def step(self, action: str) -> Transition:
        """Execute one action. Raises EnvironmentFailure."""
        return await self._do({"action": action})

    def leave(self) -> None:
        """End the episode."""
        self._worker.episodes.discard(self._number)
        self._worker.forget(self._number)

    async def _do(self, request: Request) -> Transition:
        while True:
            try:
                transition = await self._worker.ask(self._number, request)
            except _LostWorker:
                await self._move()
            else:
                self._played.append((request, transition))
                return transition

    async def _move(self) -> None:
        """Replay the episode in another process, up to where it was. Raises EnvironmentFailure."""
        while True:
            self._worker.episodes.discard(self._number)
            self._worker = await self._pool.join(self._number)
            try:
                for request, transition in self._played:
                    if await self._worker.ask(self._number, request) != transition:
                        raise EnvironmentFailure("The environment behaved differently when its actions were repeated.")
            except _LostWorker:
                continue
            return


class _LostWorker(Exception):
    """Error: the episode's process was stopped because of another episode."""


class _WorkerProcess:
    """Worker process, its episodes, and the request in progress."""

    def __init__(self, process: asyncio.subprocess.Process, scratch: Path, timeout_seconds: float) -> None:
        self.episodes: set[int] = set()
        self.dead, self._killed = False, False
        self._fatal_episode: int | None = None
        self._process, self._scratch, self._timeout = process, scratch, timeout_seconds
        self._calls = itertools.count()
        self._turn = asyncio.Lock()
        self._current: tuple[int, int, asyncio.Future[dict[str, Any]]] | None = None
        """Call in progress, its episode and its answer."""
        self._asking: set[asyncio.Task[dict[str, Any]]] = set()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, section: EnvironmentSection, seed: int, timeout_seconds: float) -> "_WorkerProcess":
        scratch = Path(tempfile.gettempdir(), f"retroformer-environment-{uuid.uuid4().hex}")
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "retroformer.environments.worker_main", scratch, str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=LINE_BYTES,
            )
        except OSError as error:
            raise EnvironmentFailure(f"No environment process could be started ({error}).") from error
        worker = cls(process, scratch, timeout_seconds)
        worker._send({"section": section.model_dump(), "seed": seed})
        return worker

    async def ask(self, episode: int, request: Request) -> Transition:
        """Return the answer. Raises EnvironmentFailure, and _LostWorker if another episode stopped the process."""
        # If the caller gives up, its request still runs to its end, so it does not use up another request's time.
        asking = asyncio.create_task(self._ask(episode, request))
        self._asking.add(asking)
        asking.add_done_callback(self._forget_request)
        answer = await asyncio.shield(asking)
        if "error" in answer:
            raise EnvironmentFailure(f"The environment failed: {answer['error']}")
        return Transition.model_validate(answer["transition"])

    def _forget_request(self, asking: asyncio.Task[dict[str, Any]]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # If it was awaited, the exception was raised there.

    async def _ask(self, episode: int, request: Request) -> dict[str, Any]:
        async with self._turn:
            if self.dead and self._fatal_episode not in (None, episode):
                raise _LostWorker
            if self.dead:
                raise EnvironmentFailure(f"The environment process {self._how_it_ended}.")
            if episode not in self.episodes:
                raise EnvironmentFailure("The episode is over: its caller gave it up.")
            call, answer = next(self._calls), asyncio.get_running_loop().create_future()
            self._current = call, episode, answer
            try:
                self._send(request | {"call": call, "episode": episode})
                return await asyncio.wait_for(answer, self._timeout)
            except TimeoutError:
                self._die()
                raise EnvironmentFailure(f"The environment did not answer within {self._timeout:g} s.") from None
            finally:
                self._current = None

    def forget(self, episode: int) -> None:
        """Let the process reuse the episode's environment; no answer is awaited."""
        if not self.dead:
            self._send({"call": next(self._calls), "episode": episode})

    async def stop(self) -> None:
        if not self.dead:
            self._die()
        await asyncio.gather(*self._asking, return_exceptions=True)
        await self._reading
        await self._process.wait()
        # A process that is killed cannot remove its temporary files.
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _send(self, request: Request) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json_with_secrets(request).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                answer = json.loads(line)
                # The answer may be to a call that is not awaited, or that was abandoned a moment ago.
                if self._current and answer["call"] == self._current[0] and not self._current[2].done():
                    self._current[2].set_result(answer)
        except ValueError as error:
            _LOGGER.warning("An environment process is stopped: it sent an invalid answer (%s).", error)
        finally:
            self.dead = True
            # It usually ends by itself now, and killing it in that moment would take its exit status from asyncio.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _ENDING_SECONDS)
            self._die()

    def _die(self) -> None:
        self.dead = True
        if self._current:
            _, self._fatal_episode, answer = self._current
            if not answer.done():
                answer.set_exception(EnvironmentFailure(f"The environment process {self._how_it_ended}."))
        if self._process.returncode is None and not self._killed:
            self._killed = True
            self._process.kill()

    @property
    def _how_it_ended(self) -> str:
        status = self._process.returncode
        if status is None:
            return "was stopped"
        return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
