"""Reads stories from the store."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean
from typing import Any

from retroformer.coach.stories.flags import Leaks, flags_of
from retroformer.coach.stories.story import Story, Turn, first_difference
from retroformer.config.arm_names import FIRST_TRIAL, first_trial
from retroformer.method.records import Key, Memory, Reflection, Task, Trajectory
from retroformer.run.store import Store, StoredReflection

_MEMORY = 3
"""Number of pieces of advice that an actor reads if the conditions do not say."""
_TASKS_AT_ONCE = 50
"""Number of stories in memory together."""


def story_arms(store: Store) -> list[str]:
    """Return the arms that have stories. An arm that only holds the trial 0 of others has none."""
    arms = store.arms()
    shared = {shared_trial(store, arm, arms) for arm in arms} - {None}
    return [arm for arm in arms if arm not in shared]


def shared_trial(store: Store, arm: str, arms: Sequence[str]) -> str | None:
    """Return the one of `arms` that holds trial 0 of this arm's tasks; None if it holds them itself."""
    parts = arm.split("/")
    if parts[0] != "eval" or parts[-1] == "trial 0":
        return None
    declared = (store.conditions(arm) or {}).get("first_trial")
    actors = ["/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1)]
    return next((name for name in (declared, *map(first_trial, actors), FIRST_TRIAL) if name in arms), None)


def read_story(store: Store, arm: str, task_id: str, leaks: Leaks | None = None) -> Story | None:
    """Return the story of a task in an arm; None if nothing is stored of it. Raises StoreError."""
    return next(_stories(store, arm, [task_id], store.arms(), leaks), None)


def stream_stories(store: Store, arm: str, task_ids: Sequence[str], leaks: Leaks | None = None) -> Iterator[Story]:
    """Yield the stories of these tasks in an arm, in order. Raises StoreError."""
    arms, ids = store.arms(), iter(task_ids)
    while chunk := list(islice(ids, _TASKS_AT_ONCE)):
        yield from _stories(store, arm, chunk, arms, leaks)


def _stories(
    store: Store, arm: str, task_ids: Sequence[str], arms: Sequence[str], leaks: Leaks | None
) -> Iterator[Story]:
    if arm not in arms:
        return  # Trial 0, which it would share with others, is not its own.
    attempts = defaultdict[str, dict[Key, Trajectory]](dict)
    invalid = defaultdict[str, list[tuple[Key, str]]](list)
    shared = shared_trial(store, arm, arms)
    for name in (shared, arm) if shared else (arm,):
        for task_id, causes in store.causes_by_task(name, task_ids).items():
            invalid[task_id] += causes
        for key, attempt in store.stream_trajectories(name, task_ids):
            attempts[key.task_id][key] = attempt
    advice = defaultdict[str, list[StoredReflection]](list)
    for stored in store.stream_reflections(arm, task_ids):
        advice[stored.key.task_id].append(stored)
    memory = _memory_size(store.conditions(arm))
    for task_id in task_ids:
        if attempts[task_id] or advice[task_id] or invalid[task_id]:
            turns = _turns(attempts[task_id], advice[task_id], memory, leaks)
            task = _task(attempts[task_id], task_id)
            blocked = any(key not in attempts[task_id] for key, _ in invalid[task_id])
            yield Story(store.experiment, arm, task, turns, tuple(cause for _, cause in invalid[task_id]), blocked)


def _turns(
    attempts: Mapping[Key, Trajectory], advice: Sequence[StoredReflection], memory: int, leaks: Leaks | None
) -> tuple[Turn, ...]:
    """Return the turns in the order of trial and candidate, each with what follows from those before it."""
    written = {(stored.key.trial, stored.key.candidate): stored for stored in advice}
    repeats = defaultdict[tuple[int, int], list[tuple[Key, Trajectory]]](list)
    for key, attempt in sorted(attempts.items(), key=lambda item: item[0].repeat):
        repeats[key.trial, key.candidate].append((key, attempt))
    ways: dict[tuple[int, int], tuple[Turn, ...]] = {}
    memories: dict[tuple[int, int], Memory] = {}
    for place in sorted({*written, *repeats}):
        stored = written.get(place)
        before = None if place[0] == 0 else _before(place, stored, ways)
        way = ways.get(before, ()) if before is not None else ()
        carried = memories.get(before, Memory()) if before is not None else Memory()
        memories[place] = carried.remember(stored.reflection.text, memory) if stored is not None else carried
        keys = [key for key, _ in repeats[place]] or [written[place].key]
        turn = _turn(keys[0], stored.reflection if stored else None, [attempt for _, attempt in repeats[place]], way)
        turn = replace(turn, memory=memories[place].reflections, written_at=stored.stored_at if stored else None)
        ways[place] = (*way, replace(turn, flags=flags_of(turn, way, leaks)))
    return tuple(way[-1] for way in ways.values())


def _before(
    place: tuple[int, int], stored: StoredReflection | None, ways: Mapping[tuple[int, int], tuple[Turn, ...]]
) -> tuple[int, int] | None:
    """Return the place of the attempt before: the one that the advice is about, else the first of its trial."""
    wanted = (place[0] - 1, stored.previous_candidate if stored is not None else place[1])
    return wanted if wanted in ways else next((other for other in ways if other[0] == place[0] - 1), None)


def _turn(key: Key, reflection: Reflection | None, attempts: Sequence[Trajectory], way: Sequence[Turn]) -> Turn:
    turn = Turn(key.model_copy(update={"repeat": 0}), way[-1].key if way else None, reflection, tuple(attempts))
    failure = way[-1].attempt if way else None
    if failure is None or turn.attempt is None:
        return turn
    gain = fmean(attempt.episode_return for attempt in attempts) - failure.episode_return
    return replace(turn, rating=gain, differs_at=first_difference(failure.steps, turn.attempt.steps))


def _task(attempts: Mapping[Key, Trajectory], task_id: str) -> Task:
    return next((attempt.task for attempt in attempts.values()), Task(id=task_id, environment="", split=""))


def _memory_size(conditions: Mapping[str, Any] | None) -> int:
    loop = (conditions or {}).get("loop")
    size = loop.get("memory") if isinstance(loop, Mapping) else None
    return size if isinstance(size, int) and size > 0 else _MEMORY
