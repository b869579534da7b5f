"""Plays chunks of tasks with one Ray actor for each worker.

The cluster is that of `RAY_ADDRESS`, or one on this machine that ends with the stage. Ray restarts a lost worker on
another node and gives it its chunks again; while no node has room, it waits, or asks its autoscaler for one. The number
of workers is that of the cluster's CPUs when the stage starts.
"""

import asyncio
import logging
import os
import pickle
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import ray as untyped_ray
from ray.exceptions import RayError, RayTaskError

from retroformer.config.file import Config
from retroformer.errors import ConfigError, RetroformerError, ServiceError
from retroformer.run.backends import Chunk, ChunkResult, OnChunkDone, OpenPlayer, Play

ray: Any = untyped_ray
"""The package without types: it declares its functions in a way that type checkers do not see."""
_CHUNKS_PER_WORKER = 2
"""Number of chunks that a worker holds: one that it plays, and the next."""
_CLOSING_SECONDS = 10.0
"""Time that workers get to stop their environments."""


class PortableConfig(NamedTuple):
    """A config on its way to a worker, with its passwords and API keys: it must not be written to a file."""

    pickled: bytes
    keys: dict[str, str]
    """API keys by the environment variables that the config names."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Pack a config with the API keys of this process."""
        keys = {name: os.environ[name] for name in config.experiment.key_variables if name in os.environ}
        return cls(pickle.dumps(config), keys)

    def unpacked(self) -> Config:
        """Return the config, and put its API keys into the environment of this process."""
        os.environ.update(self.keys)
        config: Config = pickle.loads(self.pickled)
        return config


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

    async def play(self, chunk: Chunk) -> ChunkResult | RetroformerError:
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


async def play(open_player: OpenPlayer, config: Config, chunks: Sequence[Chunk], done: OnChunkDone) -> None:
    """Play all chunks on a Ray cluster.

    Raises:
        ConfigError: the cluster has several machines, and the store is a file on this one.
        ServiceError: the cluster cannot be reached, or has been lost.
        RetroformerError: the error of a chunk.
    """
    if not chunks:
        return
    try:
        address = os.environ.get("RAY_ADDRESS")
        await asyncio.to_thread(ray.init, address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RayError) as error:
        raise ServiceError(f"The Ray cluster cannot be reached ({error}): start it, or set RAY_ADDRESS.") from error
    try:
        machines = len({node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]})
        if machines > 1 and str(config.experiment.store_url).startswith("sqlite"):
            raise ConfigError(
                f"The Ray cluster has {machines} machines, and the store is a file on this one: set store to the "
                "address of a PostgreSQL server that all of them reach."
            )
        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        sent = PortableConfig.of(config)
        remote = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)(Worker)
        workers = [remote.remote(open_player, sent, str(Path.cwd())) for _ in range(min(cpus, len(chunks)))]
        await _hand_out(workers, deque(chunks), done)
        await asyncio.wait(
            [asyncio.wrap_future(worker.close.remote().future()) for worker in workers], timeout=_CLOSING_SECONDS
        )
    except RayTaskError:
        raise
    except RayError as error:
        raise ServiceError(
            f"The Ray cluster was lost ({type(error).__name__}): everything played so far is stored; run the same "
            "command again to go on."
        ) from error
    finally:
        await asyncio.to_thread(ray.shutdown)


async def _hand_out(workers: Sequence[Any], waiting: deque[Chunk], done: OnChunkDone) -> None:
    """Give each worker its chunks, the next one when one is done.

    Raises the first error of a chunk, after the chunks in work have ended: their calls are paid for.
    """
    working: dict[asyncio.Future[Any], tuple[Any, Chunk]] = {}
    free = [worker for _ in range(_CHUNKS_PER_WORKER) for worker in workers]
    errors = list[RetroformerError]()
    while waiting or working:
        while waiting and free:
            worker, chunk = free.pop(0), waiting.popleft()
            working[asyncio.wrap_future(worker.play.remote(chunk).future())] = worker, chunk
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
