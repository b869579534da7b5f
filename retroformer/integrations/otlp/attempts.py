"""Turns spans into attempts. An attempt is a trace, or the part of one below a span that names its task.

Task, advice and score are in `retroformer.*` attributes or OpenInference's metadata:

retroformer.task.id = "refund-1"        metadata = '{"task_id": "refund-1", "advice": "Search first.", "score": 0.5}'
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field, TypeAdapter

from retroformer.cases.case import Case, CaseAttempt, CaseTask, Score
from retroformer.cases.traced import Omission, TracedAttempt, cases_of
from retroformer.errors import MissingInput
from retroformer.files.bounded import parse_json
from retroformer.integrations.otlp.conversation import Messages, is_model_call, read_conversation, tool_steps
from retroformer.integrations.otlp.files import read_spans
from retroformer.integrations.otlp.wire import ERROR, Span, validate
from retroformer.method.records import KeyNumber, Name, Step, Usage, content_text

TASK_ID = "retroformer.task.id"
SCORE = "retroformer.score"
_METADATA = "metadata"
_EVALUATION_EVENT = "gen_ai.evaluation"
_LISTS = tuple((f"{scope}{kind}s", kind) for scope in ("", "trace.") for kind in ("evaluation", "annotation"))
"""Numbered attributes of OpenInference with scores, such as `evaluations.0.evaluation.score`."""

_Id = Annotated[Name, Field(min_length=1), BeforeValidator(lambda value: str(value) if type(value) is int else value)]
_Advice = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]
_Scored = Annotated[Score, BeforeValidator(lambda value: float(value) if isinstance(value, bool) else value)]
FACTS: Mapping[str, tuple[str, TypeAdapter[Any]]] = {
    "task_id": (TASK_ID, TypeAdapter(_Id)),
    "input": ("retroformer.task.input", TypeAdapter(str)),
    "split": ("retroformer.task.split", TypeAdapter(Annotated[Name, Field(min_length=1)])),
    "trial": ("retroformer.trial", TypeAdapter(KeyNumber)),
    "advice": ("retroformer.advice", TypeAdapter(_Advice)),
    "advice_model": ("retroformer.advice.model", TypeAdapter(str)),
    "score": (SCORE, TypeAdapter(_Scored)),
}
"""Attribute and type of each fact, by its name, which is its key in the metadata."""
_SCORE_TYPE = FACTS["score"][1]
_OBJECT = TypeAdapter(dict[str, Any])


def read(path: Path, score: str | None, section: Any) -> Iterator[Case | Omission]:
    """Yield the cases of a file or folder of OTLP traces. Raises MissingInput."""
    return cases_of(attempts_of(read_spans(path), score))


def attempts_of(spans: Iterable[Span], score: str | None = None) -> Iterator[TracedAttempt | Omission]:
    """Yield the attempts of these spans, in order of time. A span that came twice counts once.

    Raises:
        MissingInput: a line or field is malformed, or several scores were given and `score` names none.
    """
    heads: dict[tuple[str, str], list[SpanPlace]] = {}
    for place in places_of(spans):
        heads.setdefault((place.span.trace_id, place.task), []).append(place)
    named = {trace for trace, head in heads if head}
    for (trace, head), members in heads.items():
        # If some spans of a trace name tasks, spans outside of those belong to no attempt.
        if head or trace not in named:
            yield _attempt(members, score)


class SpanPlace(NamedTuple):
    """A span among those around it."""

    span: Span
    depth: int
    task: str
    """Id of the outermost span that names a task; empty if none does."""
    in_call: bool
    """True inside a call of a model."""


def places_of(spans: Iterable[Span]) -> list[SpanPlace]:
    """Return the places of spans in order of time; a span that came twice has one.

    Each is found once from the place of the span around it: spans may be nested thousands deep, or in a circle.
    """
    by_identity = {span.identity: span for span in spans}
    places: dict[tuple[str, str], SpanPlace] = {}
    for span in by_identity.values():
        path: dict[tuple[str, str], Span] = {}
        around: Span | None = span
        while around is not None and around.identity not in places and around.identity not in path:
            path[around.identity] = around
            around = by_identity.get((around.trace_id, around.parent_span_id))
        outer = places.get(around.identity) if around is not None else None
        for inner in reversed(path.values()):
            task = (outer.task if outer else "") or (inner.span_id if TASK_ID in inner.attributes else "")
            in_call = outer is not None and (outer.in_call or is_model_call(outer.span))
            outer = places[inner.identity] = SpanPlace(inner, outer.depth + 1 if outer else 0, task, in_call)
    # Clocks are coarse: of spans that start at the same time, the outer one comes first.
    return sorted(places.values(), key=lambda place: (place.span.start_time_unix_nano, place.depth))


def read_agent(members: Sequence[SpanPlace]) -> tuple[Messages, tuple[Step, ...], Usage]:
    """Return the messages of one conversation, or without any the calls of tools as steps, and the usage.

    Raises MissingInput if an attribute is malformed.
    """
    # A call inside another is the same one, seen by two instruments.
    calls = [place.span for place in members if is_model_call(place.span) and not place.in_call]
    messages, usage = read_conversation(calls)
    return messages, () if messages else tuple(tool_steps(place.span for place in members)), usage


def _attempt(members: Sequence[SpanPlace], wanted: str | None) -> TracedAttempt | Omission:
    """Return the attempt that these spans, in order of time, are about."""
    facts: dict[str, Any] = {}
    spans = [place.span for place in members]
    for span in spans:
        facts = facts_of(span) | facts
    messages, steps, usage = read_agent(members)
    output = _first_text(spans, "output.value")
    if not (messages or steps or output):
        return Omission(reason="traces without a model call, a tool call or an output")
    score = _score(spans, facts, wanted)
    if score is None:
        in_error = " that ended in an error," if spans[0].status.code == ERROR else ""
        return Omission(reason=f"traces{in_error} without a score")
    asked = content_text(next((message.content for message in messages if message.role == "user"), None))
    task = facts.get("input") or asked or _first_text(spans, "input.value") or facts.get("task_id", "")
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
        started_ns=spans[0].start_time_unix_nano,
        advice=facts.get("advice", ()),
        advice_model=facts.get("advice_model", ""),
        source=spans[0].where,
    )


def _score(spans: Sequence[Span], facts: Mapping[str, Any], wanted: str | None) -> float | None:
    """Return the score of an attempt, the last of its name; None without one. Raises MissingInput."""
    if wanted is None and "score" in facts:
        return float(facts["score"])
    scores = {name: value for span in spans for name, value in _evaluations(span, wanted)}
    if wanted is not None:
        return scores.get(wanted, facts.get("score") if wanted in (SCORE, "score") else None)
    if len(scores) > 1:
        raise MissingInput(
            f"{spans[0].where} was given the scores {', '.join(sorted(scores))}: choose one, as in "
            f"`--score {min(scores)}`, or set {SCORE}."
        )
    return next(iter(scores.values()), None)


def facts_of(span: Span) -> dict[str, Any]:
    """Return what a span says, by the names of `FACTS`. Raises MissingInput if a value is out of bounds."""
    raw, place = span.attributes.get(_METADATA, {}), span.place(_METADATA)
    metadata = validate(_OBJECT, parse_json(raw, place) if isinstance(raw, str) else raw, place)
    facts = dict[str, Any]()
    for fact, (attribute, kind) in FACTS.items():
        if attribute in span.attributes:
            facts[fact] = validate(kind, span.attributes[attribute], span.place(attribute))
        elif metadata.get(fact) is not None:
            facts[fact] = validate(kind, metadata[fact], f"{place}.{fact}")
    return facts


def _evaluations(span: Span, wanted: str | None) -> Iterator[tuple[str, float]]:
    """Yield name and value of each evaluator's score, in either convention, and the attribute `wanted`.

    Raises:
        MissingInput: a score of that name, or any if `wanted` is None, is not from 0 to 1.
    """
    scores = list[tuple[str, Any, str]]()
    for prefix, kind in _LISTS:
        for attribute, name in span.attributes.items():
            if attribute.startswith(f"{prefix}.") and attribute.endswith(f".{kind}.name"):
                score = f"{attribute.removesuffix('.name')}.score"
                scores.append((str(name), span.attributes.get(score), score))
    name, score = f"{_EVALUATION_EVENT}.name", f"{_EVALUATION_EVENT}.score.value"
    scores += [(str(at[name]), at.get(score), score) for at in span.attribute_sets if name in at]
    if wanted is not None:
        scores.append((wanted, span.attributes.get(wanted), wanted))
    for name, value, attribute in scores:
        if value is not None and wanted in (None, name):
            yield name, validate(_SCORE_TYPE, value, span.place(attribute))


def _first_text(spans: Sequence[Span], attribute: str) -> str | None:
    """Return an attribute of the outermost span, as text."""
    value = spans[0].attributes.get(attribute)
    return value if isinstance(value, str) and value else None
