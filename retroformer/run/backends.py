"""Backends play the tasks of a stage on other machines; installed packages offer them by entry points.

An entry point of the group `retroformer.backends` names a `Backend`: NAME = "module:function".

A backend has workers. Each opens a player once, which starts what rollouts need, and gives it one chunk of tasks after
another. Task ids go in and counts come out; facts go from the worker to the store. A chunk may be played again, because
its worker was lost: what is stored is not repeated.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, TypeAlias

from retroformer.config.file import Config
from retroformer.config.imports import load_plugin
from retroformer.method.records import Task
from retroformer.run.attempts import Experience
from retroformer.run.ledger import Ledger
from retroformer.run.progress import Tally
from retroformer.run.schedule import Work, work_through
from retroformer.run.store.reading import chunks

ENTRY_POINTS = "retroformer.backends"
"""Entry point group of backends."""
LOCAL = "local"
_TASKS_AT_ONCE = 8
"""Number of tasks that a worker gets at once."""


class Chunk(NamedTuple):
    """Tasks of an arm that are played together."""

    arm: str
    task_ids: tuple[str, ...]


class ChunkResult(NamedTuple):
    """What came of a chunk."""

    finished: int
    """Number of finished tasks."""
    events: Counter[str]
    """Number of each outcome, and of reflections."""
    unfinished: frozenset[str]
    """Ids of tasks that the infrastructure left unfinished."""


Play: TypeAlias = Callable[[Chunk], Awaitable[ChunkResult]]
"""Plays a chunk. Raises RetroformerError if nothing more can be played, such as BudgetExhausted or StoreError."""
OpenPlayer: TypeAlias = Callable[[Config], AbstractAsyncContextManager[Play]]
"""Starts what rollouts need and yields what plays them. A function of a module, so that workers can import it."""
OnChunkDone: TypeAlias = Callable[[Chunk, ChunkResult], None]
"""Called with each chunk that was played, and what came of it."""
Backend: TypeAlias = Callable[[OpenPlayer, Config, Sequence[Chunk], OnChunkDone], Awaitable[None]]
"""Plays all chunks in any order, each at least once, and calls `OnChunkDone` after each. Raises the error of a chunk;
chunks in work may be lost."""


def backend_of(name: str) -> Backend:
    """Return a backend. Raises ConfigError or MissingInput, as `load_plugin` does."""
    backend: Backend = load_plugin(ENTRY_POINTS, name, "backend")
    return backend


async def play_elsewhere(
    name: str, open_player: OpenPlayer, config: Config, tasks_of_arms: Mapping[str, Sequence[str]], counts: Tally
) -> dict[str, set[str]]:
    """Play the tasks of each arm with the workers of a backend, the arms in their order.

    Returns the ids of the tasks that the infrastructure left unfinished, by arm. Raises as a backend does.
    """
    unfinished: dict[str, set[str]] = {arm: set() for arm in tasks_of_arms}

    def done(chunk: Chunk, played: ChunkResult) -> None:
        counts.counts.update(played.events)
        counts.done((), played.finished)
        unfinished[chunk.arm].update(played.unfinished)

    parts = ((arm, part) for arm, ids in tasks_of_arms.items() for part in chunks(ids, _TASKS_AT_ONCE))
    shares = [Chunk(arm, tuple(part)) for arm, part in parts]
    await backend_of(name)(open_player, config, shares, done)
    return unfinished


def player(ledger: Ledger, tasks: Iterable[Task], experience_of: Callable[[str], Experience], concurrency: int) -> Play:
    """Return what plays chunks of these tasks in this process. An arm's experience is made with its first chunk."""
    by_id, experiences = {task.id: task for task in tasks}, dict[str, Experience]()

    async def play(chunk: Chunk) -> ChunkResult:
        if chunk.arm not in experiences:
            experiences[chunk.arm] = experience_of(chunk.arm)
        experience, events = experiences[chunk.arm], Counter[str]()
        experience.on_event = lambda event: events.update([event])
        work = Work(experience, [by_id[task_id] for task_id in chunk.task_ids])
        await work_through(
            ledger, [work], concurrency, lambda attempts, _: events.update(attempt.outcome for attempt in attempts)
        )
        unfinished = frozenset(experience.unfinished)
        experience.unfinished.clear()
        return ChunkResult(len(work.tasks) - len(unfinished), events, unfinished)

    return play
