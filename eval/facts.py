"""Whole records of the arms, one task at a time: what the report reads beyond the columns of the store."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from retroformer.records import Trajectory
from retroformer.store import Store, StoredReflection

_TASKS_AT_ONCE = 100
"""Tasks whose records are in memory together."""


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
    """Read the shared trial 0 and all these arms side by side, in the order of the task ids.

    One query is open at a time, so that many arms need no more connections than one. Raises StoreError.
    """
    played = (store.played_tasks(arm) for arm in (shared, *stored))
    task_ids = sorted(set[str]().union(*played, *(store.reflected_tasks(arm) for arm in stored)))
    for start in range(0, len(task_ids), _TASKS_AT_ONCE):
        yield from _read(store, shared, stored, task_ids[start : start + _TASKS_AT_ONCE])


def _read(store: Store, shared: str, stored: Sequence[str], task_ids: Sequence[str]) -> list[TaskFacts]:
    first = {key.task_id: attempt for key, attempt in store.stream_trajectories(shared, task_ids)}
    seeds = {
        task_id: {arm: SeedFacts({0: first[task_id]} if task_id in first else {}, {}) for arm in stored}
        for task_id in task_ids
    }
    for arm in stored:
        for key, attempt in store.stream_trajectories(arm, task_ids):
            seeds[key.task_id][arm].attempts[key.trial] = attempt
        for reflection in store.stream_reflections(arm, task_ids):
            seeds[reflection.key.task_id][arm].reflections[reflection.key.trial] = reflection
    return [TaskFacts(task_id, first.get(task_id), seeds[task_id]) for task_id in task_ids]
