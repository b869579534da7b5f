"""What the report reads from the store: columns of all attempts, and whole records one task at a time.

The first three functions are all that the report asks of a store beyond its counts, so another store needs no more.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from retroformer.errors import StoreError
from retroformer.records import Ending, Key, Outcome, Trajectory
from retroformer.store import Store, StoredReflection


class AttemptRow(NamedTuple):
    """The columns of one attempt, without its text."""

    task_id: str
    trial: int
    candidate: int
    repeat: int
    outcome: Outcome
    ending: Ending
    episode_return: float
    actions: int
    judged: bool | None

    @property
    def failed(self) -> bool:
        """Whether the agent tries again, as `Trajectory.failed` says it."""
        return self.outcome is Outcome.FAILURE if self.judged is None else not self.judged


def attempt_rows(store: Store, arm: str) -> Iterator[AttemptRow]:
    """Yield the columns of every attempt of an arm, in any order."""
    for key, attempt in store.trajectories(arm).items():
        yield AttemptRow(
            key.task_id,
            key.trial,
            key.candidate,
            key.repeat,
            attempt.outcome,
            attempt.ending,
            attempt.episode_return,
            len(attempt.steps),
            attempt.judged,
        )


def stream_trajectories(store: Store, arm: str) -> Iterator[tuple[Key, Trajectory]]:
    """Yield the attempts of an arm by ascending task id, as Python compares texts."""
    return iter(sorted(store.trajectories(arm).items(), key=lambda fact: fact[0].task_id))


def stream_reflections(store: Store, arm: str) -> Iterator[StoredReflection]:
    """Yield the reflections of an arm by ascending task id, as Python compares texts."""
    return iter(sorted(store.reflections(arm), key=lambda stored: stored.key.task_id))


class SeedFacts(NamedTuple):
    """What one training seed of an arm did at one task."""

    attempts: dict[int, Trajectory]
    """By trial, with the shared trial 0."""
    reflections: dict[int, StoredReflection]
    """By the trial that read them."""


class TaskFacts(NamedTuple):
    """What was done at one task."""

    task_id: str
    first: Trajectory | None
    """The shared trial 0; None where it was not played."""
    seeds: dict[str, SeedFacts]
    """By name in the store."""


def facts_by_task(store: Store, shared: str, stored: Sequence[str]) -> Iterator[TaskFacts]:
    """Read the shared trial 0 and all these arms side by side; only the facts of one task are in memory.

    Raises:
        StoreError: the store gives facts in another order than by task id.
    """
    streams: list[Iterator[_Tagged]] = [_tagged(store, shared, stream_trajectories(store, shared))]
    for name in stored:
        streams.append(_tagged(store, name, stream_trajectories(store, name)))
        streams.append(_tagged(store, name, ((one.key, one) for one in stream_reflections(store, name))))
    by_task = attrgetter("key.task_id")
    for task_id, facts in groupby(merge(*streams, key=by_task), key=by_task):
        yield _gathered(task_id, facts, shared, stored)


class _Tagged(NamedTuple):
    arm: str
    key: Key
    record: Trajectory | StoredReflection


def _tagged(store: Store, arm: str, facts: Iterable[tuple[Key, Trajectory | StoredReflection]]) -> Iterator[_Tagged]:
    last = ""
    for key, record in facts:
        if key.task_id < last:
            raise StoreError(
                f"The store {store.url} gave {key.task_id!r} of arm {arm!r} after {last!r}: its order of text is not "
                "that of code points."
            )
        last = key.task_id
        yield _Tagged(arm, key, record)


def _gathered(task_id: str, facts: Iterable[_Tagged], shared: str, stored: Sequence[str]) -> TaskFacts:
    first: Trajectory | None = None
    seeds = {name: SeedFacts({}, {}) for name in stored}
    for arm, key, record in facts:
        if isinstance(record, StoredReflection):
            seeds[arm].reflections[key.trial] = record
        elif arm == shared:
            first = record
        else:
            seeds[arm].attempts[key.trial] = record
    if first is not None:
        for seed in seeds.values():
            seed.attempts.setdefault(0, first)
    return TaskFacts(task_id, first, seeds)
