"""One case: an attempt at a task, and if there are any, the advice on it, the retry that read it, and the rating.

    {"task": {"id": "refund-1", "input": "Refund order 4711."},
     "attempt": {"score": 0.0, "output": "I cannot find the order."},
     "advice": {"text": "Search by customer first.", "model": "sft"},
     "retry": {"score": 1.0, "output": "Refunded."},
     "rating": 1.0}

A file of cases is JSON lines or Parquet, one case a row (docs/cases.md). An attempt is in one of the forms of
`retroformer.attempt_result`: steps, messages of the OpenAI chat API, or its output alone.
"""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, JsonValue, model_validator

from retroformer.records import Name, Record, Step, Usage

_ROUNDING = 1e-6
"""Largest error of a rating that another program wrote."""

MOST_NUMBER = 1023
"""Largest number of a candidate or repeat in a case."""

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of the OpenAI chat API."""

CaseNumber = Annotated[int, Field(ge=0, le=MOST_NUMBER)]
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class CaseTask(Record):
    """Task as the agent saw it. Cases of one id are about one task."""

    id: Annotated[Name, Field(min_length=1)]
    input: JsonValue
    """Text of the task, or any JSON."""
    split: str = "train"


class FunctionCall(Record):
    """Name of a tool and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Record):
    """Call of a tool in an assistant's message."""

    id: str | None = None
    type: str = "function"
    function: FunctionCall


class ContentPart(Record):
    """Part of a message's content; a part that is not text keeps its own fields, as JSON."""

    type: str
    text: str | None = None
    data: dict[str, JsonValue] = Field(default_factory=dict)


def _known_role(role: str) -> str:
    if role not in ROLES:
        raise ValueError(f"{role!r} is not a role: use one of {', '.join(ROLES)}")
    return role


class ChatMessage(Record):
    """One message of a conversation, in the form of the OpenAI chat API."""

    role: Annotated[str, AfterValidator(_known_role)]
    content: str | tuple[ContentPart, ...] | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class CaseAttempt(Record):
    """One attempt: its score, and what the agent did in at least one of three forms.

    If there are several, the steps are what the reflector reads, else the messages.
    """

    score: Score
    steps: tuple[Step, ...] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    output: str | None = None
    usage: Usage = Usage()

    @model_validator(mode="after")
    def _has_a_form(self) -> Self:
        if self.steps is None and self.messages is None and self.output is None:
            raise ValueError("it has no steps, messages or output: give at least one of them")
        return self


class CaseAdvice(Record):
    """Advice on the attempt, and the model that wrote it, if that is recorded."""

    text: str
    model: str = ""


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
    advice: CaseAdvice | None = None
    retry: CaseAttempt | None = None
    rating: Annotated[float, Field(ge=-1, le=1)] | None = None
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
