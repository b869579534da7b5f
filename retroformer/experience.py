"""Does each unit of work once: looks it up in the store, else makes it and stores it before anything else happens.

A unit is one rollout or one reflection. So a stage that is killed at any moment and started again repeats at most the
units that were in flight, and what is done is never paid for twice.
"""

import asyncio
import hashlib
from collections.abc import Callable

from retroformer.config import Loop, Spending
from retroformer.environments.pool import EnvironmentPool
from retroformer.errors import BudgetExhausted, EnvironmentFailure, InfrastructureFailure
from retroformer.protocols import Agent
from retroformer.records import Key, Memory, Outcome, Reflection, Task, Trajectory, Usage
from retroformer.rollout import improve, rollout
from retroformer.store import Store


class Budget:
    """What may still be spent. Checked before a unit starts, so a unit in flight is finished and kept."""

    def __init__(self, limits: Spending, spent: Usage, section: str = "collect") -> None:
        self._limits, self.spent, self._section = limits, spent, section

    def charge(self, usage: Usage) -> None:
        self.spent += usage

    def check(self) -> None:
        """Raises BudgetExhausted where the limit is reached."""
        tokens = self.spent.prompt_tokens + self.spent.completion_tokens
        for name, spent, limit in (
            ("tokens", tokens, self._limits.tokens),
            ("dollars", self.spent.dollars, self._limits.dollars),
        ):
            if limit is not None and spent >= limit:
                raise BudgetExhausted(
                    f"The budget of {limit:g} {name} is spent ({spent:g}). What was made is stored: "
                    f"raise {self._section}.{name} and run the same command again to go on."
                )


class Experience:
    """Rollouts and reflections of one arm, each made once."""

    def __init__(
        self,
        store: Store,
        arm: str,
        pool: EnvironmentPool,
        agent: Agent,
        loop: Loop,
        seed: int,
        budget: Budget,
        *,
        slots: asyncio.Semaphore,
        repeats: int = 1,
        first_trial_arm: str | None = None,
        told: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._store, self._arm, self._pool, self._agent, self._loop = store, arm, pool, agent, loop
        self._seed, self._budget, self._slots, self._repeats = seed, budget, slots, repeats
        self._first_trial_arm = first_trial_arm or arm
        self._told = told
        self.unfinished: set[str] = set()
        """Ids of tasks that the infrastructure left for the next run."""

    async def improve(self, task: Task, candidates: int) -> None:
        """Algorithm 1 for one task; a reflection that cannot be had leaves the task for the next run."""

        async def attempt(memory: Memory, trial: int, candidate: int) -> Trajectory:
            keys = [self._key(task, trial, candidate, repeat) for repeat in range(self._repeats if trial else 1)]
            made = await asyncio.gather(*(self.trajectory(task, memory, key) for key in keys))
            if any(one.outcome is Outcome.INVALID for one in made):
                self.unfinished.add(task.id)
            return made[0]

        async def advise(failure: Trajectory, memory: Memory, trial: int, candidate: int, previous: int) -> Reflection:
            return await self.reflection(failure, memory, self._key(task, trial, candidate), previous)

        try:
            await improve(attempt, advise, self._loop, candidates)
        except InfrastructureFailure:
            self.unfinished.add(task.id)  # It is stored with its cause and counted; its key is still free.

    async def trajectory(self, task: Task, memory: Memory, key: Key) -> Trajectory:
        """The attempt under this key: from the store, or played now. Invalid where the infrastructure kept failing."""
        if found := self._store.trajectory(key):
            self._told(found.outcome.value)
            return found
        for _ in range(1 + self._loop.retries):
            async with self._slots:
                self._budget.check()
                trajectory = await self._play(task, memory, key)
            self._budget.charge(trajectory.usage)
            if trajectory.outcome is not Outcome.INVALID:
                trajectory = self._store.add_trajectory(key, trajectory)
                break
            self._store.add_invalid(key, trajectory.cause, trajectory.usage)
        self._told(trajectory.outcome.value)
        return trajectory

    async def _play(self, task: Task, memory: Memory, key: Key) -> Trajectory:
        try:
            async with self._pool.episode(task) as episode:
                return await rollout(task, episode, self._agent, memory, self._loop, self._draw(key))
        except EnvironmentFailure as failure:
            return Trajectory.invalid(task, str(failure))

    async def reflection(self, failure: Trajectory, memory: Memory, key: Key, previous_candidate: int) -> Reflection:
        """The advice under this key: from the store, or written now.

        Raises:
            InfrastructureFailure: it could not be had, `loop.retries` times over.
        """
        if found := self._store.reflection(key):
            return found
        for tries_left in reversed(range(1 + self._loop.retries)):
            try:
                async with self._slots:
                    self._budget.check()
                    written = await self._agent.reflector.reflect(failure, memory, self._draw(key))
            except InfrastructureFailure as error:
                self._store.add_invalid(key, str(error), Usage())
                self._told(Outcome.INVALID.value)
                if not tries_left:
                    raise
            else:
                self._budget.charge(written.usage)
                self._told("reflections")
                return self._store.add_reflection(key, previous_candidate, written)
        raise AssertionError("unreachable: the last try returns or raises")

    def _key(self, task: Task, trial: int, candidate: int = 0, repeat: int = 0) -> Key:
        arm = self._arm if trial else self._first_trial_arm
        return Key(arm=arm, task_id=task.id, trial=trial, candidate=candidate, repeat=repeat)

    def _draw(self, key: Key) -> int:
        """A seed of its own for every reflection and attempt, the same in every run and whatever else is in flight.

        The arm is left out: arms that compare models draw with the same numbers.
        """
        repeat = f"|{key.repeat}" if key.repeat else ""
        text = f"{self._seed}|{key.task_id}|{key.trial}|{key.candidate}{repeat}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
