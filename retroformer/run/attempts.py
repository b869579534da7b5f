"""Does each rollout and each reflection once: looks it up in the store, else does it and stores the result immediately.

So a stage that is killed and restarted repeats at most what was in flight, and never pays for finished work twice.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from retroformer.agents.arms.baselines import NoReflector
from retroformer.config.sections.base import CHAIN, Loop, RetryPlan, Spending
from retroformer.environments.pool import EnvironmentPool
from retroformer.errors import (
    BudgetExhausted,
    ConfigError,
    EndpointBusy,
    EndpointRefusal,
    EnvironmentFailure,
    InfrastructureFailure,
    StoreError,
    usage_of,
)
from retroformer.method.protocols import Actor, Agent, Move, Scene
from retroformer.method.records import Ending, Key, Memory, Outcome, Reflection, Task, Trajectory, Usage
from retroformer.method.rollout import finish_all, improve, is_complete, rollout
from retroformer.run.ledger import Ledger
from retroformer.run.store import AdviceRow, AttemptRow, NewInvalid, NewReflection, NewTrajectory

_CLOSING_PAUSE_SECONDS = 30.0
"""Longest pause that a busy endpoint may request; after a longer one it gets no more calls in this run."""


@dataclass(frozen=True)
class Budget:
    """Budget shared by all processes that work on one store; units in flight when it is spent are finished."""

    limits: Spending
    spent: Callable[[], Usage]
    section: str = "collect"

    def check(self) -> None:
        """Check the accounts, and thereby that the store answers. Raises BudgetExhausted, StoreError."""
        spent = self.spent()
        for name in ("tokens", "dollars"):
            used, limit = getattr(spent, name), getattr(self.limits, name)
            if limit is not None and used >= limit:
                raise BudgetExhausted(
                    f"The budget of {limit:g} {name} is spent ({used:g}). Finished work is stored: "
                    f"raise {self.section}.{name} and run the same command again to go on."
                )


@dataclass(frozen=True)
class StoredFacts:
    """All stored facts on one task of an arm, including those of the shared trial 0."""

    trajectories: dict[Key, Trajectory] = field(default_factory=dict)
    reflections: dict[Key, Reflection] = field(default_factory=dict)


class Experience:
    """Rollouts and reflections of one arm, each made only once.

    `on_event` is called with each outcome, and with `reflections` for each new reflection.
    """

    def __init__(
        self,
        ledger: Ledger,
        arm: str,
        pool: EnvironmentPool,
        agent: Agent,
        loop: Loop,
        seed: int,
        budget: Budget,
        *,
        slots: asyncio.Semaphore,
        plan: RetryPlan = CHAIN,
        first_trial_arm: str | None = None,
        advises_first: bool = False,
        on_event: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._ledger, self.arm, self._pool, self._loop = ledger, arm, pool, loop
        self._agent = replace(agent, actor=_FailFastActor(agent.actor, ledger, self._note))
        self._seed, self._budget, self._slots = seed, budget, slots
        self._plan = plan
        self.first_trial_arm, self._advises_first = first_trial_arm or arm, advises_first
        self.on_event = on_event
        self._facts: dict[str, StoredFacts] = {}
        """Stored facts on the tasks in work, by task id."""
        self._closed: InfrastructureFailure | None = None
        """Failure after which no more calls are made, or None."""
        self.unfinished: set[str] = set()
        """Ids of tasks that are left for the next run because the infrastructure failed."""

    def incomplete(self, tasks: Sequence[Task]) -> tuple[list[Task], list[AttemptRow]]:
        """Return the tasks that lack a fact, and the attempts at the others. Run it in the ledger's thread.

        Raises ConfigError if a task has changed since it was played.
        """
        store, ids = self._ledger.store, [task.id for task in tasks]
        self._refuse_changed({task.id: task.sha256 for task in tasks if task.sha256})
        attempts: defaultdict[str, list[AttemptRow]] = defaultdict(list)
        advised: defaultdict[str, list[AdviceRow]] = defaultdict(list)
        for arm in dict.fromkeys((self.first_trial_arm, self.arm)):
            for attempt in store.attempt_rows(arm, ids):
                attempts[attempt.task_id].append(attempt)
        for advice in store.advice_rows(self.arm, ids) if self._loop.trials > 1 else ():
            advised[advice.task_id].append(advice)
        missing, done = [], list[AttemptRow]()
        for task in tasks:
            rows = attempts[task.id]
            complete = is_complete(
                {(row.trial, row.candidate, row.repeat): row for row in rows},
                {(row.trial, row.candidate) for row in advised[task.id]},
                self._loop.trials,
                self._plan,
            )
            if complete:
                done += rows
            else:
                missing.append(task)
        return missing, done

    def _refuse_changed(self, hashes: Mapping[str, str]) -> None:
        for arm in dict.fromkeys((self.first_trial_arm, self.arm)):
            for task_id, attempt in self._ledger.store.attempts_of(arm, list(hashes)):
                if attempt.task.sha256 not in ("", hashes[task_id]):
                    raise ConfigError(
                        f"The task {task_id!r} has changed since it was played in this run: give it another id, set it "
                        "back, or name another run with run=NAME."
                    )

    def facts_of(self, task_ids: Sequence[str]) -> dict[str, StoredFacts]:
        """Return all stored facts on these tasks, by task id. Run it in the ledger's thread."""
        store, facts = self._ledger.store, {task_id: StoredFacts() for task_id in task_ids}
        for arm in dict.fromkeys((self.first_trial_arm, self.arm)):
            for key, trajectory in store.stream_trajectories(arm, task_ids):
                facts[key.task_id].trajectories[key] = trajectory
        for stored in store.stream_reflections(self.arm, task_ids):
            facts[stored.key.task_id].reflections[stored.key] = stored.reflection
        return facts

    async def improve(self, task: Task, facts: StoredFacts | None = None) -> None:
        """Run Algorithm 1 for one task. If a reflection cannot be written, the task is left for the next run.

        `facts` are the stored facts on the task, if the caller has read them.
        """

        async def play(memory: Memory, trial: int, candidate: int) -> Trajectory:
            keys = [self._key(task, trial, candidate, repeat) for repeat in range(self._plan.repeats if trial else 1)]
            played = await finish_all(self.trajectory(task, memory, key) for key in keys)
            if any(attempt.outcome is Outcome.INVALID for attempt in played):
                self.unfinished.add(task.id)
            return played[0]

        async def reflect(failure: Trajectory, memory: Memory, trial: int, candidate: int, previous: int) -> Reflection:
            key = self._key(task, trial, candidate)
            if self._plan.is_advised(candidate):
                return await self.reflection(failure, memory, key, previous)
            blank = await NoReflector().reflect(failure, memory, 0)
            return await self._ledger.keep_reflection(NewReflection(key, previous, blank))

        if facts is None:
            facts = (await self._ledger.ask(self.facts_of, [task.id]))[task.id]
        self._facts[task.id] = facts
        try:
            memory = await self._before_first(task) if self._advises_first else Memory()
            await improve(play, reflect, self._loop, self._plan, memory)
        except InfrastructureFailure:
            self.unfinished.add(task.id)  # The failure is stored with its cause and counted; its key is still free.
        finally:
            del self._facts[task.id]

    async def _before_first(self, task: Task) -> Memory:
        """Return the memory with advice on the beginning of the task. Raises as `reflection` does."""
        key = Key(arm=self.arm, task_id=task.id)
        if (advice := await self._stored_reflection(key)) is None:
            try:
                async with self._pool.episode(task) as episode:
                    opening = (await episode.reset()).observation
            except EnvironmentFailure as failure:
                await self._ledger.keep_invalid(NewInvalid(key, str(failure), Usage()))
                raise
            unplayed = Trajectory(task=task, opening=opening, outcome=Outcome.FAILURE, ending=Ending.TERMINATED)
            advice = await self.reflection(unplayed, Memory(), key, 0)
        return Memory().remember(advice.text, self._loop.memory)

    async def trajectory(self, task: Task, memory: Memory, key: Key) -> Trajectory:
        """Return the attempt under this key, from the store or played now; invalid if the infrastructure kept failing.

        Raises BudgetExhausted, StoreError, or InfrastructureFailure if the endpoint refuses every call, after which
        nothing more is played.
        """
        if stored := await self._stored_trajectory(key):
            self.on_event(stored.outcome.value)
            return stored
        for _ in range(1 + self._loop.retries):
            async with self._slots:
                await self._may_start()
                with self._charged_if_stopped(key):
                    trajectory = await self._play(task, memory, key)
                # The fact is stored before the slot is free, so that the next unit's budget check includes its cost.
                if trajectory.outcome is not Outcome.INVALID:
                    trajectory = await self._ledger.keep_trajectory(NewTrajectory(key, trajectory))
                    break
                await self._ledger.keep_invalid(NewInvalid(key, trajectory.cause, trajectory.usage))
        self.on_event(trajectory.outcome.value)
        return trajectory

    async def _play(self, task: Task, memory: Memory, key: Key) -> Trajectory:
        try:
            async with self._pool.episode(task) as episode:
                return await rollout(task, episode, self._agent, memory, self._loop, self._seed_for(key))
        except EnvironmentFailure as failure:
            return Trajectory.invalid(task, str(failure))

    async def reflection(self, failure: Trajectory, memory: Memory, key: Key, previous_candidate: int) -> Reflection:
        """Return the advice under this key, from the store or written now.

        Raises InfrastructureFailure if it cannot be written in 1 + `loop.retries` tries, BudgetExhausted, StoreError.
        """
        if stored := await self._stored_reflection(key):
            return stored
        for tries_left in reversed(range(1 + self._loop.retries)):
            async with self._slots:
                await self._may_start()
                try:
                    with self._charged_if_stopped(key):
                        written = await self._agent.reflector.reflect(failure, memory, self._seed_for(key))
                except InfrastructureFailure as error:
                    self._note(error)
                    await self._ledger.keep_invalid(NewInvalid(key, str(error), usage_of(error)))
                    self.on_event(Outcome.INVALID.value)
                    if not tries_left:
                        raise
                else:
                    self.on_event("reflections")
                    return await self._ledger.keep_reflection(NewReflection(key, previous_candidate, written))
        raise AssertionError("unreachable: the last try returns or raises")

    async def _may_start(self) -> None:
        """Check that another unit may start. Raises BudgetExhausted, StoreError, InfrastructureFailure."""
        if self._closed is not None:
            # An endpoint refused an earlier call, and would refuse every call.
            raise InfrastructureFailure(str(self._closed))
        await self._ledger.ask(self._budget.check)

    @contextmanager
    def _charged_if_stopped(self, key: Key) -> Iterator[None]:
        """Charge calls that were paid for when the stage is interrupted."""
        try:
            yield
        except asyncio.CancelledError as stopped:
            if (usage := usage_of(stopped)).calls:
                # Write in this thread and without retries: an interrupted event loop does not wait for the ledger.
                self._ledger.store.give_up()
                with suppress(StoreError):
                    self._ledger.store.charge(key.arm, usage)
            raise

    def _note(self, failure: InfrastructureFailure) -> None:
        """Stop calling an endpoint that refuses every call or requests a long pause."""
        busy = isinstance(failure, EndpointBusy) and failure.retry_after_seconds > _CLOSING_PAUSE_SECONDS
        if busy or isinstance(failure, EndpointRefusal):
            self._closed = failure

    async def _stored_trajectory(self, key: Key) -> Trajectory | None:
        if facts := self._facts.get(key.task_id):
            return facts.trajectories.get(key)
        return await self._ledger.ask(self._ledger.store.trajectory, key)

    async def _stored_reflection(self, key: Key) -> Reflection | None:
        if facts := self._facts.get(key.task_id):
            return facts.reflections.get(key)
        return await self._ledger.ask(self._ledger.store.reflection, key)

    def _key(self, task: Task, trial: int, candidate: int = 0, repeat: int = 0) -> Key:
        arm = self.arm if trial else self.first_trial_arm
        return Key(arm=arm, task_id=task.id, trial=trial, candidate=candidate, repeat=repeat)

    def _seed_for(self, key: Key) -> int:
        """Return the seed of a reflection or attempt, which depends on its key alone and is the same in every run.

        The arm is left out, so that arms that compare models sample with the same seeds.
        """
        repeat = f"|{key.repeat}" if key.repeat else ""
        text = f"{self._seed}|{key.task_id}|{key.trial}|{key.candidate}{repeat}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


@dataclass(frozen=True)
class _FailFastActor:
    """An actor that refuses to act once the store has failed, as its attempt could not be stored."""

    actor: Actor
    ledger: Ledger
    note: Callable[[InfrastructureFailure], None]

    async def act(self, scene: Scene) -> Move:
        self.ledger.check()
        try:
            return await self.actor.act(scene)
        except InfrastructureFailure as failure:
            self.note(failure)
            raise
