"""One case: an attempt at a task, and if there are any, the advice on it, the retry that read it, and the rating.

    {"task": {"id": "refund-1", "input": "Refund order 4711."},
     "attempt": {"score": 0.0, "output": "I cannot find the order."},
     "advice": {"text": "Search by customer first.", "model": "sft"},
     "retry": {"score": 1.0, "output": "Refunded."},
     "rating": 1.0}

A file of cases is JSON lines or Parquet, one case a row (docs/cases.md). An attempt is in one of the forms of
`retroformer.attempt_result`: steps, messages of the OpenAI chat API, or its output alone.
"""

import json
from typing import Annotated, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from retroformer.conversation import ChatMessage, ContentPart, FunctionCall, ToolCall
from retroformer.immutable import IF_ANY, IF_GIVEN
from retroformer.records import Name, Record, Step, Usage

__all__ = [
    "MOST_NUMBER",
    "Case",
    "CaseAdvice",
    "CaseAttempt",
    "CaseTask",
    "ChatMessage",
    "ContentPart",
    "FunctionCall",
    "ToolCall",
]

_ROUNDING = 1e-6
"""Largest error of a rating that another program wrote."""

MOST_NUMBER = 1023
"""Largest number of a candidate or repeat in a case."""

CaseNumber = Annotated[int, Field(ge=0, le=MOST_NUMBER)]
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _not_empty(name: str) -> str:
    if not name:
        raise ValueError("it is empty: give every task a name")
    return name


def _is_json(value: JsonValue) -> JsonValue:
    if not isinstance(value, str):
        json.dumps(value, allow_nan=False)
    return value


class CaseTask(Record):
    """Task as the agent saw it. Cases of one id are about one task."""

    id: Annotated[Name, AfterValidator(_not_empty)]
    input: Annotated[JsonValue, AfterValidator(_is_json)]
    """Text of the task, or any JSON."""
    split: str = "train"


class CaseAttempt(Record):
    """One attempt: its score, and what the agent did in at least one of three forms.

    If there are several, the steps are what the reflector reads, else the messages.
    """

    score: Score
    steps: Annotated[tuple[Step, ...] | None, IF_GIVEN] = None
    messages: Annotated[tuple[ChatMessage, ...] | None, IF_GIVEN] = None
    output: Annotated[str | None, IF_GIVEN] = None
    usage: Annotated[Usage, Field(exclude_if=lambda usage: usage == Usage())] = Usage()

    @model_validator(mode="after")
    def _has_a_form(self) -> Self:
        if self.steps is None and self.messages is None and self.output is None:
            raise ValueError("it has no steps, messages or output: give at least one of them")
        return self


class CaseAdvice(Record):
    """Advice on the attempt, and the model that wrote it, if that is recorded."""

    text: str
    model: str = ""
    is_cut: Annotated[bool, IF_ANY] = False
    """True if the text was cut at the limit of tokens, so that it is not taught as complete."""


class Case(Record):
    """An attempt, the advice on it, the retry that read the advice, and the rating.

    Without advice and retry it is an attempt to learn from: a failure waits for advice.
    """

    task: CaseTask
    trial: Annotated[int, Field(ge=0, lt=2**31 - 1)] = 0
    """Number of the attempt among those at its task, from 0; the retry is the next one."""
    candidate: CaseNumber = 0
    """Number of the advice among those on this attempt."""
    repeat: CaseNumber = 0
    """Number of the retry among those that read this advice."""
    attempt: CaseAttempt
    advice: Annotated[CaseAdvice | None, IF_GIVEN] = None
    retry: Annotated[CaseAttempt | None, IF_GIVEN] = None
    rating: Annotated[Annotated[float, Field(ge=-1, le=1)] | None, IF_GIVEN] = None
    """Score of the retry minus that of the attempt. A file may leave it out, as it follows from them."""

    @property
    def gain(self) -> float | None:
        """Score of the retry minus that of the attempt (Retroformer, section 4.3); None without a retry."""
        return None if self.retry is None else self.retry.score - self.attempt.score

    @model_validator(mode="after")
    def _rating_is_the_gain(self) -> Self:
        if self.rating is not None and (self.gain is None or abs(self.rating - self.gain) > _ROUNDING):
            raise ValueError(f"rating is {self.rating:g}, but the scores gain {self.gain}: correct it or leave it out")
        return self
