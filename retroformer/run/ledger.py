"""Access to the store from the event loop: one thread reads and writes, so that the event loop never blocks.

Facts that arrive while a transaction runs are stored together in the next one. After the first permanent error every
later read and write fails immediately, before another call is paid for.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from retroformer.errors import ConfigError, RetroformerError, StoreError
from retroformer.method.records import Reflection, Trajectory
from retroformer.run.store import NewInvalid, NewReflection, NewTrajectory, Store
from retroformer.run.store.rows import NewFact

_FACTS_AT_ONCE = 200
"""Largest number of facts in one transaction."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Ledger:
    """Reads and writes of one store, done in the order in which they were requested."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._waiting: list[tuple[NewFact, asyncio.Future[Any]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: RetroformerError | None = None

    def check(self) -> None:
        """Raise the permanent error of this store, if there was one."""
        if self._failure is not None:
            raise self._failure

    async def ask(
        self, question: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Run a query on the store in its thread. Raises StoreError, and whatever the query raises."""
        return await self._in_thread(lambda: question(*arguments, **named))

    async def keep_trajectory(self, fact: NewTrajectory) -> Trajectory:
        """Store an attempt and return the one stored under its key. Raises StoreError, ConfigError."""
        kept: Trajectory = await self._keep(fact)
        return kept

    async def keep_reflection(self, fact: NewReflection) -> Reflection:
        """Store advice and return the one stored under its key. Raises StoreError, ConfigError."""
        kept: Reflection = await self._keep(fact)
        return kept

    async def keep_invalid(self, fact: NewInvalid) -> None:
        """Count an attempt or reflection that the infrastructure failed. Raises StoreError, ConfigError."""
        await self._keep(fact)

    async def settle(self) -> None:
        """Wait until the facts of interrupted callers are stored, too: their calls are paid for."""
        if self._writer is not None:
            await self._writer

    def close(self) -> None:
        """Wait for the current transaction, but not for a database that does not answer."""
        self.store.give_up()
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _keep(self, fact: NewFact) -> Any:
        self.check()
        stored: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((fact, stored))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return await stored

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_FACTS_AT_ONCE], self._waiting[_FACTS_AT_ONCE:]
            facts = [fact for fact, _ in batch]
            try:
                kept = await self._in_thread(lambda facts=facts: self.store.add(facts))  # type: ignore[misc]
            except Exception as error:
                for _, stored in batch + self._waiting:
                    if not stored.done():
                        stored.set_exception(error)
                self._waiting = []
                return
            for (_, stored), record in zip(batch, kept, strict=True):
                if not stored.done():
                    stored.set_result(record)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        def unless_failed() -> Result:
            # Checked in the thread, too: a query that waited behind a failing write must not run.
            self.check()
            try:
                return work()
            except (StoreError, ConfigError) as error:
                self._failure = error
                raise

        self.check()
        return await asyncio.get_running_loop().run_in_executor(self._thread, unless_failed)
