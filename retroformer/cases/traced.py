"""Attempts that other programs recorded, grouped into cases.

A task that was tried twice with advice between is rated, another failure waits for advice. Attempts at a task are in
the order of their trial numbers, or of their start. Advice is new if the attempt before did not read it; an attempt
that read new advice is the retry of the attempt before it.

A case is numbered among equal attempts at its task only. Its number is part of what identifies it in the store, so it
must not change when an earlier attempt is imported later.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from retroformer.cases.case import Case, CaseAdvice, CaseAttempt, CaseTask
from retroformer.errors import MissingInput
from retroformer.method.records import LAST_TRIAL, KeyNumber, Record

_ADVICE = ("retroformer.advice", "advice")
"""Names of advice in the data that other programs record with an attempt."""


class TracedAttempt(Record):
    """An attempt, its place among those at its task, and the advice that it read."""

    task: CaseTask
    attempt: CaseAttempt
    trial: KeyNumber | None = None
    """Number of the attempt among those at its task, if the program counts them; ranks before the time."""
    started_ns: int = 0
    """Start of the attempt in nanoseconds since 1970: attempts at a task are in this order."""
    advice: tuple[str, ...] = ()
    """All advice that the attempt read, oldest first; advice that an earlier attempt read may be among it."""
    advice_model: str = ""
    """Model that wrote the advice, if it is recorded."""
    source: str
    """Where the attempt was read, for errors, such as `Line 3 of traces.jsonl`."""


class Omission(Record):
    """An entry that is no attempt to learn from, such as one without a score; it is counted."""

    reason: str
    """Plural noun phrase, such as `traces without a score`."""


def cases_of(entries: Iterable[TracedAttempt | Case | Omission]) -> Iterator[Case | Omission]:
    """Yield cases and what was skipped as they come, then the attempts as cases, in the order of their first tasks.

    An attempt of score 1 without a retry teaches nothing and gives no case.

    Raises MissingInput: two attempts at a task have one trial number, or only some have one.
    """
    tasks: dict[str, list[TracedAttempt]] = {}
    for entry in entries:
        if isinstance(entry, TracedAttempt):
            tasks.setdefault(entry.task.id, []).append(entry)
        else:
            yield entry
    for tried in tasks.values():
        yield from _cases(_in_order(tried))


def _cases(tried: Sequence[TracedAttempt]) -> Iterator[Case | Omission]:
    equal = Counter[str]()
    for place, attempt in enumerate(tried):
        content = attempt.attempt.model_dump_json()
        trial, equal[content] = equal[content], equal[content] + 1
        if attempt.attempt.score == 1:
            # There is nothing to advise on: whatever came next was not a retry of a failure.
            continue
        if trial >= LAST_TRIAL:
            yield Omission(reason=f"attempts beyond {LAST_TRIAL} equal ones at a task")
            continue
        after = tried[place + 1] if place + 1 < len(tried) else None
        advice = "\n".join(_new_advice(attempt.advice, after.advice)) if after is not None else ""
        case = Case(task=attempt.task, trial=trial, attempt=attempt.attempt)
        if after is not None and advice:
            advised = CaseAdvice(text=advice, model=after.advice_model)
            case = case.model_copy(update={"advice": advised, "retry": after.attempt})
        yield case.model_copy(update={"rating": case.gain})


def _in_order(tried: list[TracedAttempt]) -> list[TracedAttempt]:
    """Return the attempts at one task in order. Raises MissingInput if they contradict each other."""
    first = tried[0]
    counted = [attempt for attempt in tried if attempt.trial is not None]
    if counted and len(counted) < len(tried):
        uncounted = next(attempt for attempt in tried if attempt.trial is None)
        raise MissingInput(
            f"{uncounted.source}: the attempt at the task {first.task.id!r} has no trial number, but others at it "
            "have: number all attempts at a task or none."
        )
    seen: dict[int | None, TracedAttempt] = {}
    for attempt in counted:
        if attempt.trial in seen:
            raise MissingInput(
                f"{attempt.source}: trial {attempt.trial} of the task {first.task.id!r} is also at "
                f"{seen[attempt.trial].source}: give each attempt at a task a number of its own."
            )
        seen[attempt.trial] = attempt
    return sorted(tried, key=lambda attempt: (attempt.trial or 0, attempt.started_ns))


def _new_advice(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return the advice that an attempt read and the one before it did not; blank advice is none."""
    carried = Counter(text.strip() for text in before)
    new = Counter(text.strip() for text in after) - carried
    written = [text.strip() for text in dict.fromkeys(after) if new[text.strip()] > 0]
    if len(before) == len(after) == 1 and written:
        # One text may hold all advice so far, a line each, as `Reflector.improve` passes it.
        written = [written[0].removeprefix(before[0].strip() + "\n").strip()]
    return tuple(text for text in written if text)


def advice_in(values: Any, place: str) -> tuple[str, ...]:
    """Return the advice that an attempt's own data hold, () without any. Raises MissingInput if it is no text."""
    for name in _ADVICE if isinstance(values, dict) else ():
        advice = values.get(name)
        texts = [advice] if isinstance(advice, str) else advice
        if texts is None:
            continue
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise MissingInput(f"{place}[{name!r}] is {repr(advice)[:80]}: it must be a text or a list of texts.")
        return tuple(texts)
    return ()
