"""Preferences between two reflections on the same failure (Retroformer, section 4.3, eq. 4)."""

import math
from collections.abc import Iterable, Iterator
from itertools import combinations, groupby
from typing import Protocol, TypeVar

from retroformer.protocols import ReturnOf
from retroformer.rating import ratings
from retroformer.records import PreferencePair
from retroformer.store import Store


class Compared(Protocol):
    """Properties that decide which of two reflections is better."""

    @property
    def trajectory(self) -> tuple[str, int]: ...

    @property
    def text(self) -> str: ...

    @property
    def rating(self) -> float: ...

    @property
    def standard_error(self) -> float: ...


Rated = TypeVar("Rated", bound=Compared)


def preferences(rated: Iterable[Rated]) -> Iterator[tuple[Rated, Rated]]:
    """Yield (better, worse) for all pairs of reflections on a trajectory whose ratings differ by more than their error.

    Ties and pairs of equal texts are left out: a reward model could learn nothing but noise from them. Reflections on
    the same trajectory must be adjacent, as they are in the order of their keys.
    """
    for _, candidates in groupby(rated, key=lambda candidate: candidate.trajectory):
        worth = [(candidate.rating, candidate) for candidate in candidates]
        for first, second in combinations(worth, 2):
            if first[0] == second[0]:
                continue
            (most, better), (least, worse) = (second, first) if second[0] > first[0] else (first, second)
            margin = most - least
            if margin > math.hypot(better.standard_error, worse.standard_error) and better.text != worse.text:
                yield better, worse


def preference_pairs(store: Store, arm: str, return_of: ReturnOf | None = None) -> Iterator[PreferencePair]:
    """Yield the preferences among the rated reflections of an arm, with the prompt that both answered."""
    for better, worse in preferences(ratings(store, arm, records=True, return_of=return_of)):
        yield PreferencePair(
            task_id=better.task_id,
            prompt=better.prompt,
            chosen=better.text,
            rejected=worse.text,
            margin=better.rating - worse.rating,
        )
