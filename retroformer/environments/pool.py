"""Environments in worker processes, so that one that hangs or crashes costs only its own episode.

A process answers one request at a time; the next request is sent after the previous answer. So the time limit of a step
starts with the step, however long it had to wait. A process that is stopped because of one episode is replaced, and its
other episodes are replayed up to where they were.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import shutil
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from retroformer.endpoint.secrets.url import json_with_secrets
from retroformer.environments.section import EnvironmentSection
from retroformer.errors import EnvironmentFailure
from retroformer.method.records import Task, Transition

_LOGGER = logging.getLogger(__name__)

_LINE_BYTES = 2**24
"""Maximum length of a worker's answer in bytes."""

STEP_SECONDS = 60.0
"""Time limit of a step, counted from when its process begins it, unless the section has a `longest_step_seconds`; after
that the episode counts as invalid."""

_ENDING_SECONDS = 1.0
"""Time in which a process that has closed its output ends by itself."""

Request = dict[str, Any]


class EnvironmentPool:
    """Worker processes that share the episodes in flight; a dead one is replaced at the next episode."""

    def __init__(
        self, section: EnvironmentSection, seed: int, processes: int, timeout_seconds: float = STEP_SECONDS
    ) -> None:
        """Prepare the pool. `timeout_seconds` applies to environments without a limit of their own."""
        self._section, self._seed = section, seed
        self._timeout = section.longest_step_seconds or timeout_seconds
        self._workers: list[_WorkerProcess | None] = [None] * processes
        self._opening, self._closed = asyncio.Lock(), False
        self._episodes = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async with self._opening:
            self._closed = True
            for worker in self._workers:
                if worker is not None:
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
            for place, worker in enumerate(self._workers):
                if worker is not None and worker.dead:
                    await worker.stop()
                if worker is None or worker.dead:
                    self._workers[place] = await _WorkerProcess.start(self._section, self._seed, self._timeout)
            chosen = min((worker for worker in self._workers if worker), key=lambda worker: len(worker.episodes))
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
            except _Displaced:
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
            except _Displaced:
                continue
            return


class _Displaced(Exception):
    """Error: the episode's process was stopped because of another episode."""


class _WorkerProcess:
    """Worker process, its episodes, and the request in progress."""

    def __init__(self, process: asyncio.subprocess.Process, scratch: Path, timeout_seconds: float) -> None:
        self.episodes: set[int] = set()
        self.dead, self._killed = False, False
        self._culprit: int | None = None
        self._process, self._scratch, self._timeout = process, scratch, timeout_seconds
        self._calls = itertools.count()
        self._turn = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._working_for: int | None = None
        self._asking: set[asyncio.Task[dict[str, Any]]] = set()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, section: EnvironmentSection, seed: int, timeout_seconds: float) -> "_WorkerProcess":
        scratch = Path(tempfile.gettempdir(), f"retroformer-environment-{uuid.uuid4().hex}")
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "retroformer.environments.worker_main", scratch),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LINE_BYTES,
            )
        except OSError as error:
            raise EnvironmentFailure(f"No environment process could be started ({error}).") from error
        worker = cls(process, scratch, timeout_seconds)
        worker._send({"section": section.model_dump(), "seed": seed})
        return worker

    async def ask(self, episode: int, request: Request) -> Transition:
        """Return the answer. Raises EnvironmentFailure, and _Displaced if another episode stopped the process."""
        # If the caller gives up, its request still runs to its end, so it does not use up another request's time.
        asking = asyncio.create_task(self._ask(episode, request))
        self._asking.add(asking)
        asking.add_done_callback(self._asked)
        answer = await asyncio.shield(asking)
        if "error" in answer:
            raise EnvironmentFailure(f"The environment failed: {answer['error']}")
        return Transition.model_validate(answer["transition"])

    def _asked(self, asking: asyncio.Task[dict[str, Any]]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # If it was awaited, the exception was raised there.

    async def _ask(self, episode: int, request: Request) -> dict[str, Any]:
        async with self._turn:
            if self.dead and self._culprit not in (None, episode):
                raise _Displaced
            if self.dead:
                raise EnvironmentFailure("The environment process died.")
            if episode not in self.episodes:
                raise EnvironmentFailure("The episode is over: its caller gave it up.")
            call = next(self._calls)
            answered = self._waiting[call] = asyncio.get_running_loop().create_future()
            self._working_for = episode
            try:
                self._send(request | {"call": call, "episode": episode})
                return await asyncio.wait_for(answered, self._timeout)
            except TimeoutError:
                self._die()
                raise EnvironmentFailure(f"The environment did not answer within {self._timeout:g} s.") from None
            finally:
                self._working_for = None
                self._waiting.pop(call, None)

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
                waiting = self._waiting.get(answer["call"])
                # A call abandoned a moment ago is done, but still listed.
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        except ValueError as error:
            _LOGGER.warning("An environment process is stopped: it sent an invalid answer (%s).", error)
        finally:
            self._mark_dead()
            # It usually ends by itself now, and killing it in that moment would take its exit status from asyncio.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _ENDING_SECONDS)
            self._kill()

    def _die(self) -> None:
        self._mark_dead()
        self._kill()

    def _mark_dead(self) -> None:
        if not self.dead:
            self.dead, self._culprit = True, self._working_for
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(EnvironmentFailure("The environment process died."))

    def _kill(self) -> None:
        if self._process.returncode is None and not self._killed:
            self._killed = True
            self._process.kill()
