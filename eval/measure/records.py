"""Reads whole records of the arms, one task at a time, for counts that the columns of the store do not give."""

from collections.abc import Iterator, Sequence

from retroformer.arm_names import own_first_trial
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.store import Store

_TASKS_AT_ONCE = 100
"""Number of tasks whose records are in memory together."""


def facts_by_task(store: Store, shared: str, stored: Sequence[str]) -> Iterator[TaskFacts]:
    """Read the shared trial 0 and all these arms side by side, in the order of the task ids. Raises StoreError.

    An arm with a trial 0 of its own has that one. Only one query is open at a time, so any number of arms needs a
    single connection.
    """
    task_ids = sorted(set[str]().union(*map(store.tasks, (shared, *stored))))
    for start in range(0, len(task_ids), _TASKS_AT_ONCE):
        yield from _read(store, shared, stored, task_ids[start : start + _TASKS_AT_ONCE])


def _read(store: Store, shared: str, stored: Sequence[str], task_ids: Sequence[str]) -> list[TaskFacts]:
    first = {key.task_id: attempt for key, attempt in store.stream_trajectories(shared, task_ids)}
    seeds = {
        task_id: {arm: SeedFacts({0: first[task_id]} if task_id in first else {}, {}) for arm in stored}
        for task_id in task_ids
    }
    for arm in stored:
        for name in (own_first_trial(arm), arm):
            for key, attempt in store.stream_trajectories(name, task_ids):
                seeds[key.task_id][arm].attempts[key.trial] = attempt
        for reflection in store.stream_reflections(arm, task_ids):
            seeds[reflection.key.task_id][arm].reflections[reflection.key.trial] = reflection.reflection
    return [TaskFacts(task_id, first.get(task_id), seeds[task_id]) for task_id in task_ids]
