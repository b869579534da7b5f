"""What a reflection was worth, and which of two was better (Retroformer, section 4.3)."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from retroformer.records import Key, Message, PreferencePair, RatedReflection, Reflection, Returns
from retroformer.store import Store


class _Prompt(BaseModel):
    """The part of a reflection that training asks for; reading the rest would cost half as much again."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: tuple[Message, ...]


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
        """The whole reflection, read from JSON at each use; needs records=True."""
        assert self.record is not None, "ratings are read with records=True where reflections are needed"
        return Reflection.model_validate_json(self.record)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """What the reflector was asked, read from JSON at each use; needs records=True."""
        assert self.record is not None, "ratings are read with records=True where prompts are needed"
        return _Prompt.model_validate_json(self.record).prompt


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
    rated: tuple[str, int, int] | None = None
    text, before, returns, record = "", 0.0, list[float](), None
    for task_id, trial, candidate, text_, before_, after, record_ in store.rating_rows(arm, records=records):
        if rated != (task_id, trial, candidate):
            if rated is not None:
                yield Rating(*rated, text, before, tuple(returns), record)
            rated, text, before, returns, record = (task_id, trial, candidate), text_, before_, [], record_
        returns.append(after)
    if rated is not None:
        yield Rating(*rated, text, before, tuple(returns), record)


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
        worth = [(candidate.rating, candidate) for candidate in candidates]
        for first, second in combinations(worth, 2):
            if first[0] == second[0]:
                continue
            (most, better), (least, worse) = (second, first) if second[0] > first[0] else (first, second)
            margin = most - least
            if margin > math.hypot(better.standard_error, worse.standard_error) and better.text != worse.text:
                yield better, worse


def preference_pairs(store: Store, arm: str) -> Iterator[PreferencePair]:
    """The preferences among the rated reflections of an arm, with the prompt that both answered."""
    for better, worse in preferences(ratings(store, arm, records=True)):
        yield PreferencePair(
            task_id=better.task_id,
            prompt=better.prompt,
            chosen=better.text,
            rejected=worse.text,
            margin=better.rating - worse.rating,
        )
