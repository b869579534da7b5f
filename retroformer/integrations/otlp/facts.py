"""Reads task, advice and score of a span, from `retroformer.*` attributes or OpenInference's metadata.

retroformer.task.id = "refund-1"        metadata = '{"task_id": "refund-1", "advice": "Search first.", "score": 0.5}'
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter

from retroformer.cases.case import Score
from retroformer.files.bounded import parse_json
from retroformer.integrations.otlp.span import Span, checked
from retroformer.method.records import KeyNumber, Name

TASK_ID = "retroformer.task.id"
SCORE = "retroformer.score"
_METADATA = "metadata"
_EVALUATION_EVENT = "gen_ai.evaluation"
_LISTS = tuple((f"{scope}{kind}s", kind) for scope in ("", "trace.") for kind in ("evaluation", "annotation"))
"""Numbered attributes of OpenInference with scores, such as `evaluations.0.evaluation.score`."""

_Id = Annotated[Name, Field(min_length=1), BeforeValidator(lambda value: str(value) if type(value) is int else value)]
_Advice = Annotated[tuple[str, ...], BeforeValidator(lambda value: _texts(value))]
_Scored = Annotated[Score, BeforeValidator(lambda value: float(value) if isinstance(value, bool) else value)]
FACTS: Mapping[str, tuple[str, str, TypeAdapter[Any]]] = {
    "task_id": (TASK_ID, "task_id", TypeAdapter(_Id)),
    "input": ("retroformer.task.input", "input", TypeAdapter(str)),
    "split": ("retroformer.task.split", "split", TypeAdapter(Annotated[Name, Field(min_length=1)])),
    "trial": ("retroformer.trial", "trial", TypeAdapter(KeyNumber)),
    "advice": ("retroformer.advice", "advice", TypeAdapter(_Advice)),
    "advice_model": ("retroformer.advice.model", "advice_model", TypeAdapter(str)),
    "score": (SCORE, "score", TypeAdapter(_Scored)),
}
"""Attribute, key of the metadata and type of each fact."""
_SCORE_TYPE = FACTS["score"][2]
_OBJECT = TypeAdapter(dict[str, Any])


def facts_of(span: Span) -> dict[str, Any]:
    """Return what a span says, by the names of `FACTS`. Raises MissingInput if a value is out of bounds."""
    metadata = _metadata(span)
    facts = dict[str, Any]()
    for fact, (attribute, key, kind) in FACTS.items():
        if attribute in span.attributes:
            facts[fact] = checked(kind, span.attributes[attribute], span.place(attribute))
        elif metadata.get(key) is not None:
            facts[fact] = checked(kind, metadata[key], f"{span.place(_METADATA)}.{key}")
    return facts


def evaluations_of(span: Span, wanted: str | None) -> Iterator[tuple[str, float]]:
    """Yield name and value of each evaluator's score, in either convention, and the attribute `wanted`.

    Raises:
        MissingInput: a score of that name, or any if `wanted` is None, is not from 0 to 1.
    """
    for name, value, place in _evaluations(span):
        if value is not None and wanted in (None, name):
            yield name, checked(_SCORE_TYPE, value, place)
    if wanted is not None and wanted in span.attributes:
        yield wanted, checked(_SCORE_TYPE, span.attributes[wanted], span.place(wanted))


def _evaluations(span: Span) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value (None without one) and place of each score."""
    for prefix, kind in _LISTS:
        end = f".{kind}.name"
        for attribute, name in span.attributes.items():
            if attribute.startswith(f"{prefix}.") and attribute.endswith(end):
                score = f"{attribute.removesuffix('.name')}.score"
                yield str(name), span.attributes.get(score), span.place(score)
    for attributes in (span.attributes, *(event.attributes for event in span.events)):
        if (name := attributes.get(f"{_EVALUATION_EVENT}.name")) is not None:
            score = f"{_EVALUATION_EVENT}.score.value"
            yield str(name), attributes.get(score), span.place(score)


def _texts(value: Any) -> Any:
    """Return one text or a list of texts as a tuple."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _metadata(span: Span) -> Mapping[str, Any]:
    """Return OpenInference's metadata, a JSON object; {} without it. Raises MissingInput."""
    value, place = span.attributes.get(_METADATA, {}), span.place(_METADATA)
    metadata: dict[str, Any] = checked(_OBJECT, parse_json(value, place) if isinstance(value, str) else value, place)
    return metadata
