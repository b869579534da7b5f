"""Reads whole records of the arms, one task at a time, for counts that the columns of the store do not give."""

from collections.abc import Iterator, Mapping, Sequence

from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.store import Store

_TASKS_AT_ONCE = 100
"""Number of tasks whose records are in memory together."""


def facts_by_task(
    store: Store, shared: str, stored: Sequence[str], own: Mapping[str, str] | None = None
) -> Iterator[TaskFacts]:
    """Read the shared trial 0 and all these arms side by side, in the order of the task ids. Raises StoreError.

    `own` has the name of the trial 0 of each arm that does not share it. Only one query is open at a time, so any
    number of arms needs a single connection.
    """
    firsts = {arm: (own or {}).get(arm, shared) for arm in stored}
    task_ids = sorted(set[str]().union(*map(store.tasks, (shared, *firsts.values(), *stored))))
    for start in range(0, len(task_ids), _TASKS_AT_ONCE):
        yield from _read(store, shared, firsts, task_ids[start : start + _TASKS_AT_ONCE])


def _read(store: Store, shared: str, firsts: Mapping[str, str], task_ids: Sequence[str]) -> list[TaskFacts]:
    played = {
        name: {key.task_id: attempt for key, attempt in store.stream_trajectories(name, task_ids)}
        for name in {shared, *firsts.values()}
    }
    seeds = {
        task_id: {
            arm: SeedFacts({0: played[first][task_id]} if task_id in played[first] else {}, {})
            for arm, first in firsts.items()
        }
        for task_id in task_ids
    }
    for arm in firsts:
        for key, attempt in store.stream_trajectories(arm, task_ids):
            seeds[key.task_id][arm].attempts[key.trial] = attempt
        for reflection in store.stream_reflections(arm, task_ids):
            seeds[reflection.key.task_id][arm].reflections[reflection.key.trial] = reflection.reflection
    return [TaskFacts(task_id, played[shared].get(task_id), seeds[task_id]) for task_id in task_ids]
