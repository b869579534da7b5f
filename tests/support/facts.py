"""Adds single facts to a store, and reads causes of invalid ones."""

from retroformer.method.records import Key, Trajectory, Usage
from retroformer.run.store import NewInvalid, NewTrajectory, Store


def add_trajectory(store: Store, key: Key, trajectory: Trajectory) -> Trajectory:
    """Store an attempt and return the one stored under its key."""
    (kept,) = store.add([NewTrajectory(key, trajectory)])
    assert isinstance(kept, Trajectory)
    return kept


def add_invalid(store: Store, key: Key, cause: str, usage: Usage) -> None:
    store.add([NewInvalid(key, cause, usage)])


def causes(store: Store, arm: str) -> list[str]:
    """Return the first line of the cause of each invalid attempt of an arm, the most frequent ones first."""
    return [cause for cause, times in store.cause_counts([arm], 1000) for _ in range(times)]
