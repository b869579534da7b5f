"""Backends play the tasks of a stage on other machines; installed packages offer them by entry points.

An entry point of the group `retroformer.backends` names a `Backend`: NAME = "module:function". With the name `local`
there is none: the stage plays in its own process.

A backend has workers. Each opens a player once, which starts what rollouts need, and gives it one chunk of tasks after
another. Task ids go in and counts come out; facts go from the worker to the store. A chunk may be played again, because
its worker was lost: what is stored is not repeated.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeAlias

from retroformer.experiment.parts import LoadedConfig
from retroformer.offered import offered

ENTRY_POINTS = "retroformer.backends"
"""Entry point group of backends."""
LOCAL = "local"


class Chunk(NamedTuple):
    """Tasks of an arm that are played together."""

    arm: str
    task_ids: tuple[str, ...]


class Played(NamedTuple):
    """What came of a chunk."""

    finished: int
    """Number of finished tasks."""
    events: Counter[str]
    """Number of each outcome, and of reflections."""
    unfinished: frozenset[str]
    """Ids of tasks that the infrastructure left unfinished."""


Play: TypeAlias = Callable[[Chunk], Awaitable[Played]]
"""Plays a chunk. Raises RetroformerError if nothing more can be played, such as BudgetExhausted or StoreError."""
OpenPlayer: TypeAlias = Callable[[LoadedConfig], AbstractAsyncContextManager[Play]]
"""Starts what rollouts need and yields what plays them. A function of a module, so that workers can import it."""


Done: TypeAlias = Callable[[Chunk, Played], None]
"""Called with each chunk that was played, and what came of it."""


class Backend(Protocol):
    """Plays chunks in any order, and each at least once."""

    async def __call__(
        self, open_player: OpenPlayer, config: LoadedConfig, chunks: Sequence[Chunk], done: Done
    ) -> None:
        """Play all chunks, and call `done` after each.

        Raises:
            RetroformerError: the error of a chunk, or the backend cannot be used; chunks in work may be lost.
        """
        ...


def backend_of(name: str) -> Backend:
    """Return a backend. Raises ConfigError or MissingInput, as `offered` does."""
    backend: Backend = offered(ENTRY_POINTS, name, "backend")
    return backend


def chunks_of(arm: str, task_ids: Sequence[str], size: int) -> list[Chunk]:
    """Divide tasks into chunks of at most `size`."""
    return [Chunk(arm, tuple(task_ids[start : start + size])) for start in range(0, len(task_ids), size)]
