"""What retries gained, with advice and without."""

from statistics import fmean
from typing import NamedTuple

from retroformer.arm_names import COLLECT, UNADVISED
from retroformer.store import Store


class Gains(NamedTuple):
    """Mean change of the score from an attempt to the next one, with advice and without, and the numbers of retries."""

    advised: float
    advised_retries: int
    unadvised: float
    unadvised_retries: int


def gains_in(store: Store) -> Gains:
    """Return the gains of all retries in the store. Raises StoreError."""
    advised, unadvised = (_changes(store, arm) for arm in (COLLECT, UNADVISED))
    return Gains(_mean(advised), len(advised), _mean(unadvised), len(unadvised))


def _changes(store: Store, arm: str) -> list[float]:
    returns = {(row.task_id, row.trial): row.episode_return for row in store.attempt_rows(arm)}
    return [after - returns[task, trial - 1] for (task, trial), after in returns.items() if trial]


def _mean(changes: list[float]) -> float:
    return fmean(changes) if changes else 0.0
