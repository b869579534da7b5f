"""Works through the tasks of some arms, sharing them with other processes on the same store.

A task is leased before it is worked on, so two collectors never pay for the same rollout. What is done already is
found by one query for several hundred tasks. As many tasks are in work as rollouts may be in flight, whatever their
total, so memory does not grow with it.
"""

import asyncio
import gc
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

from retroformer.experience import Experience, TaskFacts
from retroformer.ledger import Ledger
from retroformer.records import Task
from retroformer.store import AttemptRow
from retroformer.store.leases import RENEW_SECONDS
from retroformer.store.reading import chunks

_TASKS_AT_ONCE = 500
"""Tasks whose facts are looked up by one query."""
_TURN_SECONDS = 0.25
"""Between two looks at tasks that another process works on."""


class Work(NamedTuple):
    """The tasks of one arm, with so many reflections on each failure."""

    experience: Experience
    tasks: Sequence[Task]
    candidates: int


class _Leased(NamedTuple):
    """A task that this process may work on, and what the store holds about it."""

    experience: Experience
    task: Task
    candidates: int
    facts: TaskFacts


async def work_through(
    ledger: Ledger, works: Sequence[Work], concurrency: int, done: Callable[[Sequence[AttemptRow], int], None]
) -> None:
    """Do what is missing. `done` gets the attempts that were found complete, and for how many tasks work has ended.

    Raises:
        RetroformerError: the first error that ended a task; tasks in work are ended first, and no others begun.
    """
    with _frozen_heap():
        left = [await _incomplete(ledger, work, done) for work in works]
        await _improve_all(ledger, _Queue(ledger, left, concurrency), concurrency, done)


async def _improve_all(
    ledger: Ledger, queue: "_Queue", concurrency: int, done: Callable[[Sequence[AttemptRow], int], None]
) -> None:
    errors = list[BaseException]()

    async def worker() -> None:
        try:
            while (leased := await queue.take()) is not None:
                try:
                    await leased.experience.improve(leased.task, leased.candidates, leased.facts)
                finally:
                    await queue.give_back(leased)
                done((), 1)
        except BaseException as error:
            errors.append(error)
            queue.stop()
            if isinstance(error, asyncio.CancelledError):
                raise

    async with _renewed(ledger):
        try:
            await asyncio.gather(*(worker() for _ in range(concurrency)))
        finally:
            with suppress(Exception):
                await ledger.ask(ledger.store.leases.release_all)
    if errors:
        raise errors[0]


async def _incomplete(ledger: Ledger, work: Work, done: Callable[[Sequence[AttemptRow], int], None]) -> Work:
    """The tasks that lack a fact."""
    left = list[Task]()
    for some in chunks(work.tasks, _TASKS_AT_ONCE):
        missing, attempts = await ledger.ask(work.experience.incomplete, some, work.candidates)
        left += missing
        done(attempts, len(some) - len(missing))
    return work._replace(tasks=left)


class _Queue:
    """Hands out leased tasks, a few at a time, and at the end waits for those that other processes work on."""

    def __init__(self, ledger: Ledger, works: Sequence[Work], concurrency: int) -> None:
        self._ledger, self._size = ledger, max(1, concurrency // 4)
        self._looked_at = 4 * self._size
        self._works = [(work, deque(work.tasks)) for work in works]
        self._leased = deque[_Leased]()
        self._turn = asyncio.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Hand out no more tasks."""
        self._stopped = True

    async def take(self) -> _Leased | None:
        """The next task, or None when all are done or no more are to be begun."""
        async with self._turn:
            while not self._leased and not self._stopped:
                if not any(tasks for _, tasks in self._works):
                    return None
                if not await self._lease_some():
                    await asyncio.sleep(_TURN_SECONDS)
            return None if self._stopped else self._leased.popleft()

    async def give_back(self, leased: _Leased) -> None:
        await self._ledger.ask(self._ledger.store.leases.release, leased.experience.arm, leased.task.id)

    async def _lease_some(self) -> bool:
        """Lease a few tasks of the first arm that has any that nobody else works on."""
        for work, tasks in self._works:
            for _ in range(0, len(tasks), self._looked_at):
                if await self._lease(work, tasks):
                    return True
        return False

    async def _lease(self, work: Work, tasks: deque[Task]) -> bool:
        """Lease tasks from the front; where others hold all of them, those go to the back."""
        looked_at = {task.id: task for task in (tasks.popleft() for _ in range(min(len(tasks), self._looked_at)))}
        arm, leases = work.experience.arm, self._ledger.store.leases
        taken = await self._ledger.ask(leases.take, arm, list(looked_at), self._size)
        facts = await self._ledger.ask(work.experience.facts_of, taken)
        for task_id in taken:
            self._leased.append(_Leased(work.experience, looked_at.pop(task_id), work.candidates, facts[task_id]))
        if taken:
            tasks.extendleft(reversed(looked_at.values()))
        else:
            tasks.extend(looked_at.values())
        return bool(taken)


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Keep the garbage collector from walking through all tasks; at a million attempts each walk stops all for .2 s."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@asynccontextmanager
async def _renewed(ledger: Ledger) -> AsyncIterator[None]:
    """Renew this process's leases now and then."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await ledger.ask(ledger.store.leases.renew)

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await renewing
