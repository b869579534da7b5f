"""Environment processes with an event loop of their own: verifiers may use a new loop for each evaluation."""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, TypeVar

from retroformer.coaching.background import Background
from retroformer.environments.pool import EnvironmentPool, PooledEpisode
from retroformer.experiment.config import Experiment
from retroformer.records import Task, Transition

_PROCESSES = 2
"""Processes of the environment of a split."""

Result = TypeVar("Result")


class Playing(NamedTuple):
    """An episode in progress."""

    context: AbstractAsyncContextManager[PooledEpisode]
    episode: PooledEpisode


class Pools:
    """Processes for the tasks of each split, started when they are needed."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._pools: dict[str, EnvironmentPool] = {}
        self._background: Background | None = None

    async def begin(self, task: Task) -> tuple[Playing, Transition]:
        """Start an episode. Raises EnvironmentFailure."""
        return await self._run(self._begin(task))

    async def step(self, playing: Playing, action: str) -> Transition:
        """Do one action. Raises EnvironmentFailure."""
        return await self._run(playing.episode.step(action))

    async def leave(self, playing: Playing) -> None:
        """End an episode."""
        await self._run(_leave(playing))

    async def stop(self) -> None:
        """Stop the processes; a later episode starts new ones."""
        if self._background is not None:
            await self._run(self._stop())
            background, self._background = self._background, None
            background.close()

    async def _begin(self, task: Task) -> tuple[Playing, Transition]:
        context = self._pool(task.split).episode(task)
        playing = Playing(context, await context.__aenter__())
        try:
            return playing, await playing.episode.reset()
        except BaseException:
            await _leave(playing)
            raise

    async def _stop(self) -> None:
        for pool in self._pools.values():
            await pool.__aexit__(None, None, None)
        self._pools = {}

    def _pool(self, split: str) -> EnvironmentPool:
        if split not in self._pools:
            experiment = self._experiment
            section = experiment.environment.model_copy(update={"split": split})
            self._pools[split] = EnvironmentPool(section, experiment.seed, _PROCESSES)
        return self._pools[split]

    async def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await the work in the thread with our loop."""
        self._background = self._background or Background()
        return await asyncio.wrap_future(self._background.start(work))


async def _leave(playing: Playing) -> None:
    await playing.context.__aexit__(None, None, None)
