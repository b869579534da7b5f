"""Ratings of reflections, and preferences between two on the same failure (Retroformer, section 4.2).

A rating is the change of the return from a failure to its retry.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from statistics import fmean, stdev
from typing import NamedTuple

from retroformer.method.ancestors import key_before
from retroformer.method.protocols import ReturnOf
from retroformer.method.records import Key, Message, PreferencePair, Reflection
from retroformer.run.store import Store, StoredReflection
from retroformer.run.store.reading import chunks

FEW_POSITIVES = 20
"""Number of helpful pieces of advice below which SFT has too little to imitate."""
_TASKS_AT_ONCE = 100
"""Number of tasks whose attempts are in memory together when they are rated anew."""


@dataclass(frozen=True, slots=True)
class Rating:
    """A reflection with the returns of the trials before and after it, one return after it per repeat."""

    task_id: str
    trial: int
    candidate: int
    previous_candidate: int
    """Candidate number of the failure within its trial."""
    text: str
    return_before: float
    """Return of the failure, or the mean of retries without advice."""
    returns_after: tuple[float, ...]
    record: str | None = None
    """Reflection as JSON; None unless read with records=True."""
    error_before: float = 0.0
    """Standard error of the return before; 0 for that of the failure."""

    @property
    def rating(self) -> float:
        """Gain of the next trial: G[i+1] - G[i], a mean over the repeats (Retroformer, section 4.2)."""
        after = self.returns_after
        return (after[0] if len(after) == 1 else fmean(after)) - self.return_before

    @property
    def standard_error(self) -> float:
        """Standard error of the rating; 0 with a single repeat, which cannot give one."""
        return math.hypot(standard_error(self.returns_after), self.error_before)

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
        return self.reflection.prompt

    @property
    def is_cut(self) -> bool:
        return self.reflection.is_cut


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 of a single value, which cannot give one."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


class Rerating(NamedTuple):
    """Rule by which stored reflections are rated anew, without playing again."""

    return_of: ReturnOf
    second_retry: bool = False
    """If true, the return after a reflection is that of the last attempt within two retries, not of the next one."""


def ratings(store: Store, arm: str, *, records: bool = False, anew: Rerating | None = None) -> Iterator[Rating]:
    """Yield the ratings of an arm's reflections whose trials before and after are stored, in the order of the keys.

    With `anew`, they are rated anew from the stored attempts, which takes longer.

    If a failure was also retried without advice (with a blank text), the return before the reflections on it is the
    mean of these retries. The store holds valid attempts only, so a reflection whose retry failed because of the
    infrastructure is not rated until a later run repeats the retry.
    """
    rated = _rate_stored(store, arm, records=records) if anew is None else _rate_anew(store, arm, anew)
    for candidates in by_failure(rated):
        alone = [value for candidate in candidates if not candidate.text.strip() for value in candidate.returns_after]
        for candidate in candidates:
            if alone and candidate.text.strip():
                yield replace(candidate, return_before=fmean(alone), error_before=standard_error(alone))
            else:
                yield candidate


def by_failure(rated: Iterable[Rating]) -> Iterator[list[Rating]]:
    """Yield the reflections on each failure; those on the failures of one task and trial must be adjacent."""
    for _, of_trial in groupby(rated, key=lambda candidate: candidate.trajectory[:2]):
        failures: dict[int, list[Rating]] = {}
        for candidate in of_trial:
            failures.setdefault(candidate.trajectory[2], []).append(candidate)
        yield from failures.values()


def _rate_stored(store: Store, arm: str, *, records: bool) -> Iterator[Rating]:
    for _, repeats in groupby(store.rating_rows(arm, records=records), key=lambda row: row[:4]):
        first, *others = repeats
        task_id, trial, candidate, previous, text, before, after, record = first
        yield Rating(task_id, trial, candidate, previous, text, before, (after, *(row[6] for row in others)), record)


def _rate_anew(store: Store, arm: str, anew: Rerating) -> Iterator[Rating]:
    for chosen in chunks(sorted(store.reflected_tasks(arm)), _TASKS_AT_ONCE):
        attempts = {
            key: _Attempt(anew.return_of(attempt), attempt.failed)
            for key, attempt in store.stream_trajectories(arm, chosen)
        }
        retries: dict[Key, list[_Attempt]] = {}
        for key in sorted(attempts, key=lambda key: key.repeat):
            retries.setdefault(key.model_copy(update={"repeat": 0}), []).append(attempts[key])
        reflections = list(store.stream_reflections(arm, chosen))
        later = _SecondRetries(reflections, retries)
        for stored in reflections:
            key, failure, reflection = stored.key, key_before(stored), stored.reflection
            if failure not in attempts or key not in retries:
                continue
            first = retries[key]
            returns = later.returns(key, first) if anew.second_retry else tuple(retry.returned for retry in first)
            if returns is not None:
                place = key.task_id, key.trial, key.candidate, stored.previous_candidate
                before, record = attempts[failure].returned, reflection.model_dump_json()
                yield Rating(*place, reflection.text, before, returns, record)


class _Attempt(NamedTuple):
    """Part of an attempt that a rating needs."""

    returned: float
    failed: bool
    """True if the agent retries."""


class _SecondRetries:
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


def count_signs(rated: Iterable[Rating], signs: Counter[str]) -> Iterator[Rating]:
    """Yield the ratings unchanged and count in `signs` how many are `positive`, `negative` and `zero`.

    Those of retries without advice, whose text is blank, are not counted.
    """
    for rating in rated:
        if rating.text.strip():
            signs["positive" if rating.rating > 0 else "negative" if rating.rating < 0 else "zero"] += 1
        yield rating


def preferences(rated: Iterable[Rating]) -> Iterator[tuple[Rating, Rating]]:
    """Yield (better, worse) for all pairs of reflections on a trajectory whose ratings differ by more than their error.

    Ties and pairs of equal or blank texts are left out: a reward model could learn nothing but noise from them.
    Reflections on the failures of one task and trial must be adjacent, as they are in the order of their keys.
    """
    for candidates in by_failure(rated):
        for better, worse in combinations(candidates, 2):
            if worse.rating > better.rating:
                better, worse = worse, better
            # The margin of a tie is 0, which exceeds no error.
            error = math.hypot(better.standard_error, worse.standard_error)
            distinct = better.text != worse.text and better.text.strip() and worse.text.strip()
            if distinct and better.rating - worse.rating > error:
                yield better, worse


def preference_pairs(store: Store, arm: str, anew: Rerating | None = None) -> Iterator[PreferencePair]:
    """Yield the preferences among the rated reflections of an arm, with the prompt that both answered."""
    for better, worse in preferences(ratings(store, arm, records=True, anew=anew)):
        yield PreferencePair(
            task_id=better.task_id,
            prompt=better.prompt,
            chosen=better.text,
            rejected=worse.text,
            chosen_is_cut=better.is_cut,
            rejected_is_cut=worse.is_cut,
            margin=better.rating - worse.rating,
        )


def count_ratings(arms: Iterable[Iterable[Rating]]) -> str:
    """Return how many reflections of these arms are rated, with which signs, and how many pairs they make."""
    signs = Counter[str]()
    pairs = sum(1 for rated in arms for _ in preferences(count_signs(rated, signs)))
    return (
        f"{signs.total()} rated: {signs['positive']} positive, {signs['negative']} negative, {signs['zero']} zero; "
        f"{pairs} pairs"
    )
