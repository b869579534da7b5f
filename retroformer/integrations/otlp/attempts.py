"""Turns spans into attempts. An attempt is a trace, or the part of one below a span that names its task."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retroformer.cases.case import Case, CaseAttempt, CaseTask
from retroformer.cases.traced import Skipped, TracedAttempt, cases_of
from retroformer.errors import MissingInput
from retroformer.integrations.otlp.conversation import ModelCall, conversation, is_model_call, model_call, tool_steps
from retroformer.integrations.otlp.facts import SCORE, TASK_ID, evaluations_of, facts_of
from retroformer.integrations.otlp.files import read_spans
from retroformer.integrations.otlp.span import Span
from retroformer.method.conversation import ChatMessage, content_text
from retroformer.method.records import Usage

NO_CALLS = Skipped(reason="traces without a model call, a tool call or an output")
NO_SCORE = Skipped(reason="traces without a score")
ENDED_IN_ERROR = Skipped(reason="traces that ended in an error, without a score")


def read(path: Path, score: str | None, section: Any) -> Iterator[Case | Skipped]:
    """Yield the cases of a file or folder of OTLP traces. Raises MissingInput."""
    return cases_of(attempts_of(read_spans(path), score))


def attempts_of(spans: Iterable[Span], score: str | None = None) -> Iterator[TracedAttempt | Skipped]:
    """Yield the attempts of these spans, in order of time. A span that came twice counts once.

    Raises:
        MissingInput: a line or field is malformed, or several scores were given and `score` names none.
    """
    known = {span.identity: span for span in spans}
    heads: dict[tuple[str, str], list[Span]] = {}
    # Clocks are coarse: of spans that start at the same time, the outer one comes first.
    for span in sorted(known.values(), key=lambda span: (span.start_ns, sum(1 for _ in _around(span, known)))):
        heads.setdefault(_head(span, known), []).append(span)
    named = {trace for trace, head in heads if head}
    for (trace, head), members in heads.items():
        # If some spans of a trace name tasks, spans outside of those belong to no attempt.
        if head or trace not in named:
            yield _attempt(members, known, score)


def check(spans: Iterable[Span]) -> None:
    """Check all that can be checked span by span. Raises MissingInput."""
    for span in spans:
        facts_of(span)
        if is_model_call(span):
            model_call(span)


def model_calls(spans: Sequence[Span], known: Mapping[tuple[str, str], Span]) -> list[ModelCall]:
    """Return the calls of models in order of time. A call inside another is the same one, seen by two instruments.

    Raises:
        MissingInput: an attribute is malformed.
    """
    return [
        model_call(span)
        for span in spans
        if is_model_call(span) and not any(is_model_call(around) for around in _around(span, known))
    ]


def _head(span: Span, known: Mapping[tuple[str, str], Span]) -> tuple[str, str]:
    """Return trace and id of the outermost span that names the task of this one; without an id if none does."""
    naming = [around.span_id for around in (span, *_around(span, known)) if TASK_ID in around.attributes]
    return span.trace_id, naming[-1] if naming else ""


def _around(span: Span, known: Mapping[tuple[str, str], Span]) -> Iterator[Span]:
    """Yield the spans around a span, the nearest first."""
    seen = {span.identity}
    around = known.get((span.trace_id, span.parent_id))
    while around is not None and around.identity not in seen:
        seen.add(around.identity)
        yield around
        around = known.get((around.trace_id, around.parent_id))


def _attempt(spans: list[Span], known: Mapping[tuple[str, str], Span], wanted: str | None) -> TracedAttempt | Skipped:
    """Return the attempt that these spans, in order of time, are about."""
    facts: dict[str, Any] = {}
    for span in spans:
        facts = facts_of(span) | facts
    calls = model_calls(spans, known)
    messages = conversation(calls)
    steps = () if messages else tool_steps(spans)
    output = _first_text(spans, "output.value")
    if not (messages or steps or output):
        return NO_CALLS
    score = _score(spans, facts, wanted)
    if score is None:
        return ENDED_IN_ERROR if spans[0].failed else NO_SCORE
    task = facts.get("input") or _asked(messages) or _first_text(spans, "input.value") or facts.get("task_id", "")
    usage = sum((call.usage for call in calls), Usage())
    return TracedAttempt(
        task=CaseTask(
            id=facts.get("task_id") or hashlib.sha256(task.encode()).hexdigest()[:16],
            input=task,
            split=facts.get("split", "train"),
        ),
        attempt=CaseAttempt(
            score=score,
            messages=messages or None,
            steps=steps or None,
            output=output if not messages else None,
            usage=usage,
        ),
        trial=facts.get("trial"),
        started_ns=spans[0].start_ns,
        advice=facts.get("advice", ()),
        advice_model=facts.get("advice_model", ""),
        source=spans[0].where,
    )


def _score(spans: Sequence[Span], facts: Mapping[str, Any], wanted: str | None) -> float | None:
    """Return the score of an attempt, the last of its name; None without one. Raises MissingInput."""
    if wanted is None and "score" in facts:
        return float(facts["score"])
    given = {name: value for span in spans for name, value in evaluations_of(span, wanted)}
    if wanted is not None:
        return given.get(wanted, facts.get("score") if wanted in (SCORE, "score") else None)
    if len(given) > 1:
        raise MissingInput(
            f"{spans[0].where} was given the scores {', '.join(sorted(given))}: choose one, as in "
            f"`--score {min(given)}`, or set {SCORE}."
        )
    return next(iter(given.values()), None)


def _asked(messages: Sequence[ChatMessage]) -> str:
    """Return the text of the first message of the user."""
    return content_text(next((message.content for message in messages if message.role == "user"), None))


def _first_text(spans: Sequence[Span], attribute: str) -> str | None:
    """Return an attribute of the outermost span, as text."""
    value = spans[0].attributes.get(attribute)
    return value if isinstance(value, str) and value else None
