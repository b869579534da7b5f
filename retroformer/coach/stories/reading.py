"""Reads stories from the store, or a line of each from its columns without reading an attempt."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import groupby, islice
from statistics import fmean

from retroformer.coach.stories.story import Leaks, Story, Turn, first_difference, flags_of
from retroformer.method.records import Key, Memory, Outcome, Reflection, Task, Trajectory
from retroformer.run.arm_names import FIRST_TRIAL, GATE_FIRST_TRIAL, first_trial, is_gate_arm
from retroformer.run.store import AttemptRow, Store, StoredReflection

_MEMORY = 3
"""Number of pieces of advice that an actor reads if the conditions do not say."""
_TASK_BATCH = 20
"""Number of stories in memory together."""


def story_arms(store: Store) -> dict[str, tuple[str, ...]]:
    """Return the arms that have stories, each with the arms that hold its facts: one may hold trial 0 of others."""
    arms = store.arms()
    shared = {arm: shared_trial(store, arm, arms) for arm in arms}
    return {arm: (first, arm) if first else (arm,) for arm, first in shared.items() if arm not in shared.values()}


def shared_trial(store: Store, arm: str, arms: Sequence[str]) -> str | None:
    """Return the one of `arms` that holds trial 0 of this arm's tasks; None if it holds them itself."""
    if is_gate_arm(arm) and arm != GATE_FIRST_TRIAL:
        return GATE_FIRST_TRIAL if GATE_FIRST_TRIAL in arms else None
    parts = arm.split("/")
    if parts[0] != "eval" or parts[-1] == "trial 0":
        return None
    declared = (store.conditions(arm) or {}).get("first_trial")
    actors = ["/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1)]
    return next((name for name in (declared, *map(first_trial, actors), FIRST_TRIAL) if name in arms), None)


def read_story(store: Store, arm: str, task_id: str, leaks: Leaks | None = None) -> Story | None:
    """Return the story of a task in an arm; None if nothing is stored of it. Raises StoreError."""
    return next(stream_stories(store, arm, [task_id], leaks), None)


def stream_stories(store: Store, arm: str, task_ids: Sequence[str], leaks: Leaks | None = None) -> Iterator[Story]:
    """Yield the stories of these tasks in an arm, in order. Raises StoreError."""
    names, ids = story_arms(store).get(arm, ()), iter(task_ids)
    while names and (chunk := list(islice(ids, _TASK_BATCH))):
        yield from _stories(store, names, chunk, leaks)


def _stories(store: Store, names: Sequence[str], task_ids: Sequence[str], leaks: Leaks | None) -> Iterator[Story]:
    *_, arm = names
    attempts = defaultdict[str, dict[Key, Trajectory]](dict)
    invalid = defaultdict[str, list[tuple[Key, str]]](list)
    for name in names:
        for task_id, causes in store.causes_by_task(name, task_ids).items():
            invalid[task_id] += causes
        for key, attempt in store.stream_trajectories(name, task_ids):
            attempts[key.task_id][key] = attempt
    advice = defaultdict[str, list[StoredReflection]](list)
    for stored in store.stream_reflections(arm, task_ids):
        advice[stored.key.task_id].append(stored)
    loop = (store.conditions(arm) or {}).get("loop")
    size = loop.get("memory") if isinstance(loop, Mapping) else None
    memory = size if isinstance(size, int) and size > 0 else _MEMORY
    for task_id in task_ids:
        if attempts[task_id] or advice[task_id] or invalid[task_id]:
            turns = _turns(attempts[task_id], advice[task_id], memory, leaks)
            unknown = Task(id=task_id, environment="", split="")
            task = next((attempt.task for attempt in attempts[task_id].values()), unknown)
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
    paths: dict[tuple[int, int], tuple[Turn, ...]] = {}
    memories: dict[tuple[int, int], Memory] = {}
    for place in sorted({*written, *repeats}):
        stored = written.get(place)
        before = None if place[0] == 0 else _previous_place(place, stored, paths)
        path = paths.get(before, ()) if before is not None else ()
        carried = memories.get(before, Memory()) if before is not None else Memory()
        memories[place] = carried.remember(stored.reflection.text, memory) if stored is not None else carried
        keys = [key for key, _ in repeats[place]] or [written[place].key]
        turn = _turn(keys[0], stored.reflection if stored else None, [attempt for _, attempt in repeats[place]], path)
        turn = replace(turn, memory=memories[place].reflections, written_at=stored.stored_at if stored else None)
        paths[place] = (*path, replace(turn, flags=flags_of(turn, path, leaks)))
    return tuple(path[-1] for path in paths.values())


def _previous_place(
    place: tuple[int, int], stored: StoredReflection | None, paths: Mapping[tuple[int, int], tuple[Turn, ...]]
) -> tuple[int, int] | None:
    """Return the place of the attempt before: the one that the advice is about, else the first of its trial."""
    wanted = (place[0] - 1, stored.previous_candidate if stored is not None else place[1])
    return wanted if wanted in paths else next((other for other in paths if other[0] == place[0] - 1), None)


def _turn(key: Key, reflection: Reflection | None, attempts: Sequence[Trajectory], path: Sequence[Turn]) -> Turn:
    turn = Turn(key.model_copy(update={"repeat": 0}), path[-1].key if path else None, reflection, tuple(attempts))
    failure = path[-1].attempt if path else None
    if failure is None or turn.attempt is None:
        return turn
    gain = fmean(attempt.episode_return for attempt in attempts) - failure.episode_return
    return replace(turn, rating=gain, differs_at=first_difference(failure.steps, turn.attempt.steps))


@dataclass(frozen=True)
class StoryLine:
    """A story in one line."""

    task_id: str
    attempts: int
    first: float | None
    """Return of trial 0."""
    last: float | None
    """Highest return of the last trial."""
    solved_at: int | None
    """Number of the first trial that solved the task; None if none did."""
    best_rating: float | None
    """Highest rating of a piece of advice in the story; None if none was tried."""
    worst_rating: float | None


def story_lines(store: Store, arm: str) -> Iterator[StoryLine]:
    """Yield the stories of an arm in the order of their task ids. Raises StoreError."""
    streams = [store.attempt_rows(name) for name in story_arms(store)[arm]]
    before = {(row.task_id, row.trial, row.candidate): row.previous_candidate for row in store.advice_rows(arm)}
    for task_id, rows in groupby(merge(*streams, key=lambda row: row[:4]), key=lambda row: row.task_id):
        yield _line(task_id, list(rows), before)


def _line(task_id: str, rows: list[AttemptRow], before: dict[tuple[str, int, int], int]) -> StoryLine:
    returns = defaultdict[tuple[int, int], list[float]](list)
    for row in rows:
        returns[row.trial, row.candidate].append(row.episode_return)
    means = {place: fmean(values) for place, values in returns.items()}
    gains = [
        means[trial, candidate] - returns[trial - 1, previous][0]
        for trial, candidate in means
        if (previous := before.get((task_id, trial, candidate))) is not None and (trial - 1, previous) in means
    ]
    last = max(trial for trial, _ in means)
    solved = [row.trial for row in rows if row.outcome == Outcome.SUCCESS]
    return StoryLine(
        task_id=task_id,
        attempts=len(rows),
        first=means.get((0, 0)),
        last=max(value for (trial, _), value in means.items() if trial == last),
        solved_at=min(solved, default=None),
        best_rating=max(gains, default=None),
        worst_rating=min(gains, default=None),
    )
