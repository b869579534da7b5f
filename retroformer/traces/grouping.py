"""Groups recorded attempts into cases: a task tried twice with advice between is rated, another failure waits.

Attempts at a task are in the order of their trial numbers, or of their start. Advice is new if the attempt before did
not read it; an attempt that read new advice is the retry of the attempt before it.

A case is numbered among equal attempts at its task only. Its number is part of what identifies it in the store, so it
must not change when an earlier attempt is imported later.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from retroformer.cases.case import Case, CaseAdvice
from retroformer.errors import MissingInput
from retroformer.traces.attempt import TracedAttempt


def cases_of(attempts: Iterable[TracedAttempt]) -> Iterator[Case]:
    """Yield the cases, task by task in the order in which the tasks first appear.

    An attempt of score 1 without a retry teaches nothing and gives no case.

    Raises:
        MissingInput: two attempts at a task have one trial number, or only some have one.
    """
    tasks: dict[str, list[TracedAttempt]] = {}
    for attempt in attempts:
        tasks.setdefault(attempt.task.id, []).append(attempt)
    for tried in tasks.values():
        yield from _cases(_in_order(tried))


def _cases(tried: Sequence[TracedAttempt]) -> Iterator[Case]:
    equal = Counter[str]()
    for place, attempt in enumerate(tried):
        content = attempt.attempt.model_dump_json()
        trial, equal[content] = equal[content], equal[content] + 1
        after = tried[place + 1] if place + 1 < len(tried) else None
        written = _new_advice(attempt.advice, after.advice) if after is not None else ()
        if attempt.attempt.score == 1:
            # There is nothing to advise on: whatever came next was not a retry of a failure.
            continue
        if after is None or not written:
            yield Case(task=attempt.task, trial=trial, attempt=attempt.attempt)
            continue
        advice = CaseAdvice(text="\n".join(written), model=after.advice_model)
        rating = after.attempt.score - attempt.attempt.score
        yield Case(
            task=attempt.task,
            trial=trial,
            attempt=attempt.attempt,
            advice=advice,
            retry=after.attempt,
            rating=rating,
        )


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
