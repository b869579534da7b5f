"""Ratings of reflections: the change of the return from a failure to its retry (Retroformer, section 4.3)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from retroformer.method.protocols import ReturnOf
from retroformer.method.records import Key, Message, RatedReflection, Reflection, Returns, standard_error
from retroformer.run.store import Store, StoredReflection

_TASKS_AT_ONCE = 100
"""Number of tasks whose attempts are in memory together when they are rated anew."""


class _Trained(BaseModel):
    """Part of a reflection that training needs; parsing the rest would take half as much time again."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: tuple[Message, ...]
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Rating(Returns):
    """Rating read from columns, without the reflection's prompt."""

    task_id: str
    trial: int
    candidate: int
    previous_candidate: int
    text: str
    return_before: float
    returns_after: tuple[float, ...]
    record: str | None = None
    """Reflection as JSON; None unless read with records=True."""
    error_before: float = 0.0

    @property
    def trajectory(self) -> tuple[str, int, int]:
        """Failure that it reflects on: the task, the trial after the failure, and the failure's candidate number."""
        return self.task_id, self.trial, self.previous_candidate

    @property
    def reflection(self) -> Reflection:
        """Whole reflection, parsed from JSON at each use; needs records=True."""
        assert self.record is not None, "ratings are read with records=True where reflections are needed"
        return Reflection.model_validate_json(self.record)

    @property
    def prompt(self) -> tuple[Message, ...]:
        """Prompt of the reflector, parsed from JSON at each use; needs records=True."""
        return self._trained.prompt

    @property
    def is_cut(self) -> bool:
        """True if the text was cut at the limit of tokens; parsed from JSON at each use, needs records=True."""
        return self._trained.finish_reason == "length"

    @property
    def _trained(self) -> _Trained:
        assert self.record is not None, "ratings are read with records=True where prompts are needed"
        return _Trained.model_validate_json(self.record)


class _OnFailure(Protocol):
    @property
    def trajectory(self) -> tuple[str, int, int]: ...


Rated = TypeVar("Rated", bound=Returns)
OnFailure = TypeVar("OnFailure", bound=_OnFailure)


class Rerating(NamedTuple):
    """Rule by which stored reflections are rated anew, without playing again."""

    return_of: ReturnOf
    second_retry: bool = False
    """If true, the return after a reflection is that of the last attempt within two retries, not of the next one."""


def ratings(store: Store, arm: str, *, records: bool = False, anew: Rerating | None = None) -> Iterator[Rating]:
    """Yield the ratings of an arm's reflections whose trials before and after are stored, in the order of the keys.

    With `anew`, they are rated anew from the stored attempts, which takes longer.

    If a failure was also retried without advice (with a blank text), the return before the reflections on it is the
    mean of these retries.

    The store holds valid attempts only, so a reflection whose retry failed because of the infrastructure is not rated
    until a later run repeats the retry.
    """
    yield from _against_unadvised(
        _stored(store, arm, records=records) if anew is None else _rated_anew(store, arm, anew)
    )


def _against_unadvised(rated: Iterable[Rating]) -> Iterator[Rating]:
    for candidates in by_failure(rated):
        alone = [value for candidate in candidates if not candidate.text.strip() for value in candidate.returns_after]
        for candidate in candidates:
            if alone and candidate.text.strip():
                yield replace(candidate, return_before=fmean(alone), error_before=standard_error(alone))
            else:
                yield candidate


def by_failure(rated: Iterable[OnFailure]) -> Iterator[list[OnFailure]]:
    """Yield the reflections on each failure; those on the failures of one task and trial must be adjacent."""
    for _, of_trial in groupby(rated, key=lambda candidate: candidate.trajectory[:2]):
        failures: dict[int, list[OnFailure]] = {}
        for candidate in of_trial:
            failures.setdefault(candidate.trajectory[2], []).append(candidate)
        yield from failures.values()


def _stored(store: Store, arm: str, *, records: bool) -> Iterator[Rating]:
    rated: tuple[str, int, int, int] | None = None
    text, before, returns, record = "", 0.0, list[float](), None
    for task_id, trial, candidate, previous, text_, before_, after, record_ in store.rating_rows(arm, records=records):
        if rated != (place := (task_id, trial, candidate, previous)):
            if rated is not None:
                yield Rating(*rated, text, before, tuple(returns), record)
            rated, text, before, returns, record = place, text_, before_, [], record_
        returns.append(after)
    if rated is not None:
        yield Rating(*rated, text, before, tuple(returns), record)


def _rated_anew(store: Store, arm: str, anew: Rerating) -> Iterator[Rating]:
    task_ids = sorted(store.reflected_tasks(arm))
    for start in range(0, len(task_ids), _TASKS_AT_ONCE):
        chosen = task_ids[start : start + _TASKS_AT_ONCE]
        attempts = {
            key: _Attempt(anew.return_of(attempt), attempt.failed)
            for key, attempt in store.stream_trajectories(arm, chosen)
        }
        retries: dict[Key, list[_Attempt]] = {}
        for key in sorted(attempts, key=lambda key: key.repeat):
            retries.setdefault(key.model_copy(update={"repeat": 0}), []).append(attempts[key])
        reflections = list(store.stream_reflections(arm, chosen))
        later = _Later(reflections, retries)
        for key, previous_candidate, reflection, _ in reflections:
            failure = Key(arm=arm, task_id=key.task_id, trial=key.trial - 1, candidate=previous_candidate)
            if failure not in attempts or key not in retries:
                continue
            first = retries[key]
            returns = later.returns(key, first) if anew.second_retry else tuple(retry.returned for retry in first)
            if returns is not None:
                place = key.task_id, key.trial, key.candidate, previous_candidate
                record = reflection.model_dump_json()
                yield Rating(*place, reflection.text, attempts[failure].returned, returns, record)


class _Attempt(NamedTuple):
    """Part of an attempt that a rating needs."""

    returned: float
    failed: bool
    """True if the agent retries."""


class _Later:
    """Second retries of some tasks: those that follow the retry that a reflection led to."""

    def __init__(self, reflections: Sequence[StoredReflection], retries: Mapping[Key, Sequence[_Attempt]]) -> None:
        self._continued = {(key.task_id, key.trial - 1) for key, _, _, _ in reflections}
        """Task and trial of each attempt after which the chain went on."""
        self._seconds: dict[tuple[str, int, int], list[float]] = {}
        """Return of each second retry, a mean over its repeats, by task, trial and candidate of the first one."""
        previous = {key: previous_candidate for key, previous_candidate, _, _ in reflections}
        for key, repeats in retries.items():
            self._continued.add((key.task_id, key.trial - 1))
            # Imported logs may retry without a new reflection: then there is a single candidate.
            first = key.task_id, key.trial - 1, previous.get(key, key.candidate)
            self._seconds.setdefault(first, []).append(fmean(retry.returned for retry in repeats))

    def returns(self, key: Key, first: Sequence[_Attempt]) -> tuple[float, ...] | None:
        """Return for each repeat of the first retry the return of the last attempt within two retries.

        It is the retry's own if the agent stopped there, or if no chain went on from its trial: another candidate had
        solved the task, or it was the last trial. Otherwise it is the mean over the second retries. None, for unknown,
        if the chain went on from another candidate only, or if the second retry is not stored yet: a failure that had
        one retry must not lose against one that had two.
        """
        place = key.task_id, key.trial
        if place not in self._continued or not any(retry.failed for retry in first):
            return tuple(retry.returned for retry in first)
        seconds = self._seconds.get((*place, key.candidate))
        if seconds is None:
            return None
        second = fmean(seconds)
        return tuple(second if retry.failed else retry.returned for retry in first)


def rated_reflections(store: Store, arm: str, anew: Rerating | None = None) -> Iterator[RatedReflection]:
    """Yield the ratings of an arm with the whole reflections."""
    for rating in ratings(store, arm, records=True, anew=anew):
        yield RatedReflection(
            key=Key(arm=arm, task_id=rating.task_id, trial=rating.trial, candidate=rating.candidate),
            previous_candidate=rating.previous_candidate,
            reflection=rating.reflection,
            return_before=rating.return_before,
            returns_after=rating.returns_after,
            error_before=rating.error_before,
        )


def counted(rated: Iterable[Rated], signs: Counter[str]) -> Iterator[Rated]:
    """Yield the ratings unchanged and count in `signs` how many are `positive`, `negative` and `zero`."""
    for rating in rated:
        signs["positive" if rating.rating > 0 else "negative" if rating.rating < 0 else "zero"] += 1
        yield rating
