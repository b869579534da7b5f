"""Ratings of reflections: the change of the return from a failure to its retry (Retroformer, section 4.3)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from retroformer.protocols import ReturnOf
from retroformer.records import Key, Message, RatedReflection, Reflection, Returns
from retroformer.store import Store

_TASKS_AT_ONCE = 100
"""Number of tasks whose attempts are in memory together when they are rated anew."""


class _Prompt(BaseModel):
    """Part of a reflection that training needs; parsing the rest would take half as much time again."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Rating(Returns):
    """Rating read from columns, without the reflection's prompt."""

    task_id: str
    trial: int
    candidate: int
    text: str
    return_before: float
    returns_after: tuple[float, ...]
    record: str | None = None
    """Reflection as JSON; None unless read with records=True."""

    @property
    def trajectory(self) -> tuple[str, int]:
        """Failure that it reflects on, as the task and the trial after the failure."""
        return self.task_id, self.trial

    @property
    def reflection(self) -> Reflection:
        """Whole reflection, parsed from JSON at each use; needs records=True."""
        assert self.record is not None, "ratings are read with records=True where reflections are needed"
        return Reflection.model_validate_json(self.record)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """Prompt of the reflector, parsed from JSON at each use; needs records=True."""
        assert self.record is not None, "ratings are read with records=True where prompts are needed"
        return _Prompt.model_validate_json(self.record).prompt


Rated = TypeVar("Rated", bound=Returns)


def ratings(store: Store, arm: str, *, records: bool = False, return_of: ReturnOf | None = None) -> Iterator[Rating]:
    """Yield the ratings of an arm's reflections whose trials before and after are stored, in the order of the keys.

    With `return_of`, they are rated anew by that return of the stored attempts, which takes longer.

    The store holds valid attempts only, so a reflection whose retry failed because of the infrastructure is not rated
    until a later run repeats the retry.
    """
    if return_of is not None:
        yield from _rated_anew(store, arm, return_of)
        return
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


def _rated_anew(store: Store, arm: str, return_of: ReturnOf) -> Iterator[Rating]:
    task_ids = sorted(store.reflected_tasks(arm))
    for start in range(0, len(task_ids), _TASKS_AT_ONCE):
        chosen = task_ids[start : start + _TASKS_AT_ONCE]
        returns = {key: return_of(attempt) for key, attempt in store.stream_trajectories(arm, chosen)}
        after: dict[Key, list[float]] = {}
        for key in sorted(returns, key=lambda key: key.repeat):
            after.setdefault(key.model_copy(update={"repeat": 0}), []).append(returns[key])
        for key, previous_candidate, reflection, _ in store.stream_reflections(arm, chosen):
            failure = Key(arm=arm, task_id=key.task_id, trial=key.trial - 1, candidate=previous_candidate)
            if failure in returns and key in after:
                place = key.task_id, key.trial, key.candidate
                record = reflection.model_dump_json()
                yield Rating(*place, reflection.text, returns[failure], tuple(after[key]), record)


def rated_reflections(store: Store, arm: str, return_of: ReturnOf | None = None) -> Iterator[RatedReflection]:
    """Yield the ratings of an arm with the whole reflections."""
    for rating in ratings(store, arm, records=True, return_of=return_of):
        yield RatedReflection(
            key=Key(arm=arm, task_id=rating.task_id, trial=rating.trial, candidate=rating.candidate),
            reflection=rating.reflection,
            return_before=rating.return_before,
            returns_after=rating.returns_after,
        )


def counted(rated: Iterable[Rated], signs: Counter[str]) -> Iterator[Rated]:
    """Yield the ratings unchanged and count in `signs` how many are `positive`, `negative` and `zero`."""
    for rating in rated:
        signs["positive" if rating.rating > 0 else "negative" if rating.rating < 0 else "zero"] += 1
        yield rating
