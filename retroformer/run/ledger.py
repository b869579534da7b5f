"""Access to the store from the event loop: one thread reads and writes, so that the event loop never blocks.

Facts that arrive while a transaction runs are stored together in the next one. After the first permanent error every
later read and write fails immediately, before another call is paid for.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeAlias, TypeVar

from retroformer.errors import ConfigError, InfrastructureFailure, RetroformerError, StoreError
from retroformer.method.records import Reflection, Trajectory
from retroformer.run.store import NewInvalid, NewReflection, NewTrajectory, Store
from retroformer.run.store.rows import NewFact, UnstorableFact

_FACTS_AT_ONCE = 200
"""Largest number of facts in one transaction."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_Waiting: TypeAlias = tuple[NewFact, asyncio.Future[Any]]
"""A fact, and its caller's wait for the one that is stored."""


class Ledger:
    """Reads and writes of one store, done in the order in which they were requested."""

    def __init__(self, store: Store, *, retry_after: float = math.inf) -> None:
        """Open it. For a service, `retry_after` is the number of seconds after which a failed store is tried again."""
        self.store, self._retry_after = store, retry_after
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: RetroformerError | None = None
        self._failed_at = 0.0

    def check(self) -> None:
        """Raise the permanent error of this store, if there was one."""
        if self._failure is not None and time.monotonic() < self._failed_at + self._retry_after:
            raise self._failure

    async def ask(
        self, question: Callable[Parameters, Result], *arguments: Parameters.args, **named: Parameters.kwargs
    ) -> Result:
        """Run a query on the store in its thread. Raises StoreError, and whatever the query raises."""
        return await self._in_thread(lambda: question(*arguments, **named))

    async def keep_trajectory(self, fact: NewTrajectory) -> Trajectory:
        """Store an attempt and return the one stored under its key; one that cannot be stored is invalid.

        Raises StoreError, ConfigError.
        """
        try:
            kept: Trajectory = await self._keep(fact)
        except UnstorableFact as error:
            usage = fact.trajectory.usage
            await self.keep_invalid(NewInvalid(fact.key, str(error), usage))
            return Trajectory.invalid(fact.trajectory.task, str(error)).model_copy(update={"usage": usage})
        return kept

    async def keep_reflection(self, fact: NewReflection) -> Reflection:
        """Store advice and return the one stored under its key.

        Raises StoreError, ConfigError, and InfrastructureFailure if it cannot be stored, which is counted.
        """
        try:
            kept: Reflection = await self._keep(fact)
        except UnstorableFact as error:
            await self.keep_invalid(NewInvalid(fact.key, str(error), fact.reflection.usage))
            raise InfrastructureFailure(str(error)) from error
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
            try:
                try:
                    await self._store(batch)
                except UnstorableFact:
                    for entry in batch:
                        await self._store_alone(entry)
            except Exception as error:
                _fail(batch + self._waiting, error)
                self._waiting = []
                return

    async def _store(self, batch: Sequence[_Waiting]) -> None:
        """Store facts in one transaction, and tell their callers."""
        kept = await self._in_thread(lambda: self.store.add([fact for fact, _ in batch]))
        for (_, stored), record in zip(batch, kept, strict=True):
            if not stored.done():
                stored.set_result(record)

    async def _store_alone(self, entry: _Waiting) -> None:
        """Store a fact of a transaction in which one could not be stored; only that one fails."""
        try:
            await self._store([entry])
        except UnstorableFact as error:
            _fail([entry], error)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        def unless_failed() -> Result:
            # Checked in the thread, too: a query that waited behind a failing write must not run.
            self.check()
            try:
                return work()
            except UnstorableFact:
                raise
            except (StoreError, ConfigError) as error:
                self._failure, self._failed_at = error, time.monotonic()
                raise

        self.check()
        return await asyncio.get_running_loop().run_in_executor(self._thread, unless_failed)


def _fail(entries: Iterable[_Waiting], error: Exception) -> None:
    for _, stored in entries:
        if not stored.done():
            stored.set_exception(error)
