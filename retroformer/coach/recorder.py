"""Records the attempts at a task and the advice between them as facts of the store."""

import asyncio
import hashlib
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from retroformer.agents.attempt_result import AttemptResult, as_trajectory, fields_of, text_of
from retroformer.agents.reflector import ModelReflector
from retroformer.endpoint.own_server import provenance
from retroformer.errors import (
    EndpointFailure,
    EndpointRefusal,
    InfrastructureFailure,
    ProvenanceError,
    describe,
    usage_of,
)
from retroformer.files.text import storable
from retroformer.method.ancestors import ancestors
from retroformer.method.records import LONGEST_NAME, Key, Lesson, Memory, Outcome, Reflection, Task, Trajectory
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.ledger import Ledger
from retroformer.run.store import NewInvalid, NewReflection, NewTrajectory, Store

_ENVIRONMENT, _SPLIT = "agent", "live"
ADVISED_SPLIT = "advised"
"""Split of the stories that were drawn to get advice; they are comparable with the unadvised ones."""
_PROVENANCE_SECONDS, _PROVENANCE_SHARE = 10.0, 0.1
"""Time limit for asking an endpoint which adapters it serves, also as a share of that of a call."""


@dataclass
class OpenTask:
    """A task in progress: the next trial, and the advice that it reads."""

    task: Task
    opening: str
    advised: bool = True
    """False if it is retried without advice, to measure luck."""
    trial: int = 0
    memory: Memory = field(default_factory=Memory)

    @classmethod
    def of(cls, task: Any, advised: bool | None = None) -> "OpenTask":
        """Return the story of a task that has not been attempted. Two stories of one task have different ids.

        Give `advised` if it was drawn at random; without it, the story is advised and is compared with no other.
        """
        split = ADVISED_SPLIT if advised else _SPLIT
        record = Task(id=_name(task), environment=_ENVIRONMENT, split=split, story=uuid.uuid4().hex[:12])
        return cls(record, storable(text_of(task)), advised is not False)

    @property
    def key(self) -> Key:
        return Key(arm=COLLECT if self.advised else UNADVISED, task_id=self.task.key, trial=self.trial)

    @property
    def advice(self) -> str:
        """Advice that the next attempt reads, a line each; empty if there is none."""
        return "\n".join(self.memory.reflections)


class ChainRecorder:
    """Stores stories, and has the reflector write the advice in them. Runs in the event loop of its ledger."""

    def __init__(self, ledger: Ledger, reflector: ModelReflector, memory: int) -> None:
        """Write with this reflector for agents that read the `memory` most recent pieces of advice."""
        self._ledger, self._reflector, self._memory = ledger, reflector, memory
        self._reports_adapter = reflector.model.base_url.secret_url().startswith("http")
        """False once the endpoint has shown that it is not a Retroformer server, or that it refuses the key."""
        self._last_adapter: str | None = None
        """Hash of the adapter that the endpoint reported last."""

    async def keep(self, story: OpenTask, result: AttemptResult) -> Trajectory:
        """Store an attempt; return it, invalid if it is too long. Raises StoreError, ConfigError."""
        return await self._ledger.keep_trajectory(
            NewTrajectory(story.key, as_trajectory(story.task, story.opening, result))
        )

    async def keep_invalid(self, story: OpenTask, error: BaseException) -> None:
        """Count an attempt that crashed. Raises StoreError, ConfigError."""
        await self._ledger.keep_invalid(NewInvalid(story.key, describe(error), usage_of(error)))

    async def next_advice(self, story: OpenTask, failure: Trajectory) -> str:
        """Write the advice for the next attempt, or none for a story without advice, and go on to its trial.

        Raises:
            InfrastructureFailure: the attempt could not be stored.
            EndpointFailure: the reflector did not answer; the call is counted.
            StoreError: the store failed.
        """
        if failure.outcome is Outcome.INVALID:
            raise InfrastructureFailure(failure.cause)
        before = story.key
        story.trial += 1
        if not story.advised:
            return ""
        try:
            memory = story.memory.model_copy(update={"earlier": await self._ledger.ask(self._ancestors, before)})
            digest = hashlib.sha256(f"{story.task.key}|{story.trial}".encode()).digest()
            written = await self._reflect(failure, memory, seed=int.from_bytes(digest[:4]))
        except InfrastructureFailure as error:
            await self.keep_invalid(story, error)
            raise
        except asyncio.CancelledError as stopped:
            if (usage := usage_of(stopped)).calls:
                late = EndpointFailure("The reflector's answer was not waited for any longer.", usage=usage)
                await asyncio.shield(self.keep_invalid(story, late))
            raise
        kept = await self._ledger.keep_reflection(NewReflection(story.key, before.candidate, written))
        story.memory = story.memory.remember(kept.text, self._memory)
        return story.advice

    async def _reflect(self, failure: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Write advice that names the adapter that wrote it, if the endpoint reports it."""
        before = self._last_adapter or await self._adapter()
        written = await self._reflector.reflect(failure, memory, seed)
        if before is None:
            return written
        self._last_adapter = await self._adapter()
        if self._last_adapter != before:
            return written  # The served adapter changed meanwhile, so either may have written it.
        return written.model_copy(update={"author": written.author.model_copy(update={"adapter_sha256": before})})

    async def _adapter(self) -> str | None:
        """Return the hash of the served adapter; None if it is unknown, or if there is none."""
        if not self._reports_adapter:
            return None
        model = self._reflector.model
        seconds = min(_PROVENANCE_SECONDS, _PROVENANCE_SHARE * model.endpoint.timeout_seconds)
        try:
            reported = await provenance(model.base_url.secret_url(), model.endpoint.api_key_env, seconds)
        except (ProvenanceError, EndpointRefusal):
            self._reports_adapter = False
            return None
        except EndpointFailure:
            return None
        served = reported.models.get(model.model)
        return None if served is None else served.adapter_sha256

    def _ancestors(self, key: Key) -> tuple[Lesson, ...]:
        """Read the earlier attempts of the chain from the store, as another process may have begun it."""
        store = self._ledger.store
        attempts = dict(store.stream_trajectories(key.arm, [key.task_id]))
        advice = {stored.key: stored for stored in store.stream_reflections(key.arm, [key.task_id])}
        return ancestors(key, attempts, advice)


def _name(task: Any) -> str:
    """Return the task's own `id`, if it is not too long, or a hash."""
    with suppress(Exception):  # It is of the user's own type.
        own = (fields_of(task) or {}).get("id")
        if own is not None:
            name = storable(str(own))
            return name if len(name.encode()) <= LONGEST_NAME else hashlib.sha256(name.encode()).hexdigest()[:16]
    return hashlib.sha256(text_of(task).encode(errors="replace")).hexdigest()[:16]


class Gains(NamedTuple):
    """Mean change of the score from an attempt to the next one, with advice and without, and the numbers of retries."""

    advised: float
    advised_retries: int
    unadvised: float
    unadvised_retries: int


def gains_in(store: Store) -> Gains:
    """Return the gains of all retries in the store. Raises StoreError."""
    return Gains(*_mean_gain(store, COLLECT), *_mean_gain(store, UNADVISED))


def _mean_gain(store: Store, arm: str) -> tuple[float, int]:
    returns = {(row.task_id, row.trial): row.episode_return for row in store.attempt_rows(arm)}
    changes = [after - returns[task, trial - 1] for (task, trial), after in returns.items() if trial]
    return fmean(changes) if changes else 0.0, len(changes)
