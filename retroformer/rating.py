"""What a reflection was worth, and which of two was better (Retroformer, section 4.3)."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Protocol, TypeVar

from retroformer.records import Key, PreferencePair, RatedReflection, Reflection, Returns
from retroformer.store import RatingRow, Store


@dataclass(frozen=True, slots=True)
class Rating(Returns):
    """A rating read from columns, without the reflection's prompt."""

    task_id: str
    trial: int
    candidate: int
    text: str
    return_before: float
    returns_after: tuple[float, ...]
    record: str | None = None
    """The reflection as JSON, where it was asked for."""

    @property
    def trajectory(self) -> tuple[str, int]:
        """Which failure it looked at: the task and the trial after it."""
        return self.task_id, self.trial

    @property
    def reflection(self) -> Reflection:
        """The whole reflection, read from JSON at each use."""
        assert self.record is not None, "ratings are read with records=True where reflections are needed"
        return Reflection.model_validate_json(self.record)


class Compared(Protocol):
    """What decides which of two reflections is better."""

    @property
    def trajectory(self) -> tuple[str, int]: ...

    @property
    def text(self) -> str: ...

    @property
    def rating(self) -> float: ...

    @property
    def standard_error(self) -> float: ...


Rated = TypeVar("Rated", bound=Compared)


def ratings(store: Store, arm: str, *, records: bool = False) -> Iterator[Rating]:
    """Every reflection of an arm whose trial before and trial after are stored, in the order of the keys.

    The store holds valid attempts only, so a reflection whose retry the infrastructure spoiled is not rated: it waits
    for the next run.
    """
    for _, repeats in groupby(store.rating_rows(arm, records=records), key=_rated_by):
        rows = list(repeats)
        first = rows[0]
        yield Rating(
            first.task_id,
            first.trial,
            first.candidate,
            first.text,
            first.return_before,
            tuple(row.return_after for row in rows),
            first.record,
        )


def rated_reflections(store: Store, arm: str) -> Iterator[RatedReflection]:
    """The ratings of an arm with the whole reflections."""
    for rating in ratings(store, arm, records=True):
        yield RatedReflection(
            key=Key(arm=arm, task_id=rating.task_id, trial=rating.trial, candidate=rating.candidate),
            reflection=rating.reflection,
            return_before=rating.return_before,
            returns_after=rating.returns_after,
        )


def counted(rated: Iterable[Rated], signs: Counter[str]) -> Iterator[Rated]:
    """Pass ratings on, and count how many are `positive`, `negative` and `zero`."""
    for rating in rated:
        signs["positive" if rating.rating > 0 else "negative" if rating.rating < 0 else "zero"] += 1
        yield rating


def preferences(rated: Iterable[Rated]) -> Iterator[tuple[Rated, Rated]]:
    """The better and the worse of all two reflections on one trajectory whose ratings differ by more than their error.

    Ties never become pairs, nor does a text with itself: a reward model can learn nothing but noise from them.
    Reflections on one trajectory must come one after the other, as they do in the order of their keys.
    """
    for _, candidates in groupby(rated, key=lambda candidate: candidate.trajectory):
        for first, second in combinations(candidates, 2):
            better, worse = (second, first) if second.rating > first.rating else (first, second)
            margin = better.rating - worse.rating
            if margin > math.hypot(better.standard_error, worse.standard_error) and better.text != worse.text:
                yield better, worse


def preference_pairs(store: Store, arm: str) -> Iterator[PreferencePair]:
    """The preferences among the rated reflections of an arm, with the prompt that both answered."""
    for better, worse in preferences(ratings(store, arm, records=True)):
        yield PreferencePair(
            task_id=better.task_id,
            prompt=better.reflection.prompt,
            chosen=better.text,
            rejected=worse.text,
            margin=better.rating - worse.rating,
        )


def _rated_by(row: RatingRow) -> tuple[str, int, int]:
    return row.task_id, row.trial, row.candidate
