"""Plays chunks of tasks with one Ray actor for each worker.

The cluster is that of `RAY_ADDRESS`, or one on this machine that ends with the stage. Ray restarts a lost worker on
another node and gives it its chunks again; while no node has room, it waits, or asks its autoscaler for one. The number
of workers is that of the cluster's CPUs when the stage starts.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import ray as untyped_ray
from ray.exceptions import RayError, RayTaskError

from retroformer.backends import Chunk, Done, OpenPlayer, Play, Played
from retroformer.errors import ConfigError, RetroformerError, ServiceError
from retroformer.experiment.config import Experiment
from retroformer.experiment.parts import LoadedConfig, PortableConfig

ray: Any = untyped_ray
"""The package without types: it declares its functions in a way that type checkers do not see."""
AHEAD = 2
"""Number of chunks that a worker holds: one that it plays, and the next."""
_CLOSING_SECONDS = 10.0
"""Time that workers get to stop their environments."""


class Worker:
    """Process that plays one chunk after another. After a restart it opens its player again."""

    def __init__(self, open_player: OpenPlayer, config: PortableConfig, folder: str) -> None:
        # Paths of the config are relative to the folder of the command, if this machine has it.
        with suppress(OSError):
            os.chdir(folder)
        self._open_player, self._config = open_player, config.unpacked()
        self._stack = AsyncExitStack()
        self._play: Play | None = None
        self._one_at_a_time = asyncio.Lock()

    async def play(self, chunk: Chunk) -> Played | RetroformerError:
        """Play a chunk. An error is returned, as Ray would wrap one that is raised."""
        async with self._one_at_a_time:
            try:
                if self._play is None:
                    self._play = await self._stack.enter_async_context(self._open_player(self._config))
                return await self._play(chunk)
            except RetroformerError as error:
                return error

    async def close(self) -> None:
        """Stop the environments."""
        await self._stack.aclose()


async def play(open_player: OpenPlayer, config: LoadedConfig, chunks: Sequence[Chunk], done: Done) -> None:
    """Play all chunks on a Ray cluster.

    Raises:
        ConfigError: the cluster has several machines, and the store is a file on this one.
        ServiceError: the cluster cannot be reached, or has been lost.
        RetroformerError: the error of a chunk.
    """
    if not chunks:
        return
    try:
        await asyncio.to_thread(_join, os.environ.get("RAY_ADDRESS"))
    except (ConnectionError, ValueError, RayError) as error:
        raise ServiceError(f"The Ray cluster cannot be reached ({error}): start it, or set RAY_ADDRESS.") from error
    try:
        _require_reachable(config.experiment, _machines())
        sent = PortableConfig.of(config)
        remote = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Worker)
        workers = [remote.remote(open_player, sent, str(Path.cwd())) for _ in range(min(_cpus(), len(chunks)))]
        await _hand_out(workers, deque(chunks), done)
        await asyncio.wait([_future(worker.close.remote()) for worker in workers], timeout=_CLOSING_SECONDS)
    except RayTaskError:
        raise
    except RayError as error:
        raise ServiceError(
            f"The Ray cluster was lost ({type(error).__name__}): everything played so far is stored; run the same "
            "command again to go on."
        ) from error
    finally:
        await asyncio.to_thread(ray.shutdown)


async def _hand_out(workers: Sequence[Any], waiting: deque[Chunk], done: Done) -> None:
    """Give each worker its chunks, the next one when one is done.

    Raises the first error of a chunk, after the chunks in work have ended: their calls are paid for.
    """
    working: dict[asyncio.Future[Any], tuple[Any, Chunk]] = {}
    free = [worker for _ in range(AHEAD) for worker in workers]
    errors = list[RetroformerError]()
    while waiting or working:
        while waiting and free:
            worker, chunk = free.pop(0), waiting.popleft()
            working[_future(worker.play.remote(chunk))] = worker, chunk
        finished, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
        for future in finished:
            worker, chunk = working.pop(future)
            free.append(worker)
            result = future.result()
            if isinstance(result, RetroformerError):
                errors.append(result)
                waiting.clear()
            else:
                done(chunk, result)
    if errors:
        raise errors[0]


def _future(reference: Any) -> "asyncio.Future[Any]":
    return asyncio.ensure_future(_result(reference))


async def _result(reference: Any) -> Any:
    return await reference


def _join(address: str | None) -> None:
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def _cpus() -> int:
    resources: dict[str, float] = ray.cluster_resources()
    return max(1, int(resources.get("CPU", 1)))


def _machines() -> int:
    nodes: list[dict[str, Any]] = ray.nodes()
    return len({node["NodeManagerHostname"] for node in nodes if node["Alive"]})


def _require_reachable(experiment: Experiment, machines: int) -> None:
    """Refuse a store that other machines cannot reach. Raises ConfigError."""
    if machines > 1 and str(experiment.store_url).startswith("sqlite"):
        raise ConfigError(
            f"The Ray cluster has {machines} machines, and the store is a file on this one: set store to the address "
            "of a PostgreSQL server that all of them reach."
        )
