"""Lists the stories of an arm from the columns of the store, without reading any attempt."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby

from retroformer.coach.stories.reading import shared_trial
from retroformer.method.records import Outcome
from retroformer.run.store import AttemptRow, Store


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
    shared = shared_trial(store, arm, store.arms())
    streams = [store.attempt_rows(name) for name in (shared, arm) if name is not None]
    before = {(row.task_id, row.trial, row.candidate): row.previous_candidate for row in store.advice_rows(arm)}
    for task_id, rows in groupby(merge(*streams, key=lambda row: row[:4]), key=lambda row: row.task_id):
        yield _line(task_id, list(rows), before)


def _line(task_id: str, rows: list[AttemptRow], before: dict[tuple[str, int, int], int]) -> StoryLine:
    returns = defaultdict[tuple[int, int], list[float]](list)
    for row in rows:
        returns[row.trial, row.candidate].append(row.episode_return)
    means = {place: sum(values) / len(values) for place, values in returns.items()}
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
