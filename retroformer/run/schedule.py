"""Works through the tasks of several arms, sharing them with other processes on the same store.

A task is leased before it is worked on, so two collectors never pay for the same rollout. One query finds the finished
work of several hundred tasks. The number of tasks in work is the number of rollouts that may be in flight, so memory
does not grow with the total number of tasks.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from retroformer.method.records import Task
from retroformer.run.attempts import Experience, StoredFacts
from retroformer.run.ledger import Ledger
from retroformer.run.store import AttemptRow
from retroformer.run.store.leases import RENEW_SECONDS
from retroformer.run.store.reading import chunks

_TASKS_AT_ONCE = 500
"""Number of tasks whose facts one query reads."""
_TURN_SECONDS = 0.25
"""Time between two checks of tasks that another process works on."""


class Work(NamedTuple):
    """Tasks of one arm."""

    experience: Experience
    tasks: Sequence[Task]


class _Lease(NamedTuple):
    """Task leased to this process, with its stored facts."""

    experience: Experience
    task: Task
    facts: StoredFacts


async def work_through(
    ledger: Ledger, works: Sequence[Work], concurrency: int, done: Callable[[Sequence[AttemptRow], int], None]
) -> None:
    """Make all missing facts. `done` receives the stored attempts of complete tasks, and the number of finished tasks.

    Raises the first error of a task; tasks in work are finished first, and no new ones started.
    """
    incomplete = [await _incomplete(ledger, work, done) for work in works]
    queue, errors = _Queue(ledger, incomplete, concurrency), list[BaseException]()

    async def worker() -> None:
        try:
            while (leased := await queue.take()) is not None:
                try:
                    await leased.experience.improve(leased.task, leased.facts)
                finally:
                    await queue.give_back(leased)
                done((), 1)
        except BaseException as error:
            errors.append(error)
            queue.stop()
            if isinstance(error, asyncio.CancelledError):
                raise

    async with _renew_leases(ledger):
        try:
            await asyncio.gather(*(worker() for _ in range(concurrency)))
        finally:
            with suppress(Exception):
                await ledger.settle()
                await ledger.ask(ledger.store.leases.release_all)
    if errors:
        raise errors[0]


async def _incomplete(ledger: Ledger, work: Work, done: Callable[[Sequence[AttemptRow], int], None]) -> Work:
    """Return the work with only the tasks that lack a fact."""
    incomplete = list[Task]()
    for chunk in chunks(work.tasks, _TASKS_AT_ONCE):
        missing, attempts = await ledger.ask(work.experience.incomplete, chunk)
        incomplete += missing
        done(attempts, len(chunk) - len(missing))
    return work._replace(tasks=incomplete)


class _Queue:
    """Queue of tasks, leased a few at a time. At the end it waits for tasks that other processes work on."""

    def __init__(self, ledger: Ledger, works: Sequence[Work], concurrency: int) -> None:
        self._ledger, self._size = ledger, max(1, concurrency // 4)
        self._checked_at_once = 4 * self._size
        self._works = [(work, deque(work.tasks)) for work in works]
        self._leased = deque[_Lease]()
        self._turn = asyncio.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Hand out no more tasks."""
        self._stopped = True

    async def take(self) -> _Lease | None:
        """Return the next task, or None if all are done or the queue is stopped."""
        async with self._turn:
            while not self._leased and not self._stopped:
                if not any(tasks for _, tasks in self._works):
                    return None
                if not await self._lease_some():
                    await asyncio.sleep(_TURN_SECONDS)
            return None if self._stopped else self._leased.popleft()

    async def give_back(self, leased: _Lease) -> None:
        await self._ledger.ask(self._ledger.store.leases.release, leased.experience.arm, leased.task.id)

    async def _lease_some(self) -> bool:
        """Lease a few tasks of the first arm with tasks that no other process works on."""
        for work, tasks in self._works:
            for _ in range(0, len(tasks), self._checked_at_once):
                if await self._lease(work, tasks):
                    return True
        return False

    async def _lease(self, work: Work, tasks: deque[Task]) -> bool:
        """Lease tasks from the front of the queue; if other processes hold all of them, move them to the back."""
        count = min(len(tasks), self._checked_at_once)
        waiting = {task.id: task for task in (tasks.popleft() for _ in range(count))}
        arm, leases = work.experience.arm, self._ledger.store.leases
        taken = await self._ledger.ask(leases.take, arm, list(waiting), self._size)
        facts = await self._ledger.ask(work.experience.facts_of, taken)
        for task_id in taken:
            self._leased.append(_Lease(work.experience, waiting.pop(task_id), facts[task_id]))
        if taken:
            tasks.extendleft(reversed(waiting.values()))
        else:
            tasks.extend(waiting.values())
        return bool(taken)


@asynccontextmanager
async def _renew_leases(ledger: Ledger) -> AsyncIterator[None]:
    """Renew this process's leases regularly."""

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
