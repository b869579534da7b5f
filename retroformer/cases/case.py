"""One case: an attempt at a task, and if there are any, the advice on it, the retry that read it, and the rating.

    {"task": {"id": "refund-1", "input": "Refund order 4711."},
     "attempt": {"score": 0.0, "output": "I cannot find the order."},
     "advice": {"text": "Search by customer first.", "model": "sft"},
     "retry": {"score": 1.0, "output": "Refunded."},
     "rating": 1.0}

It is the one form in which attempts enter and leave a run (docs/cases.md). An attempt is in one of the forms of
`retroformer.agents.attempt_result`: steps, messages of the OpenAI chat API, or its output alone. With an `origin` a
case holds facts as a run stores them, and an import restores exactly these.
"""

import json
import math
import re
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, JsonValue, ValidationError, model_validator
from pydantic_core import ErrorDetails

from retroformer.agents.messages import clean_messages
from retroformer.endpoint.answers import drop_thinking_fields
from retroformer.errors import DamagedFile
from retroformer.files.bounded import MIB
from retroformer.files.text import json_value
from retroformer.method.records import (
    LAST_TRIAL,
    OMIT_EMPTY,
    OMIT_NONE,
    ChatMessage,
    ContentPart,
    Ending,
    FunctionCall,
    Key,
    Name,
    Outcome,
    Record,
    Reflection,
    Reward,
    Step,
    ToolCall,
    Usage,
)
from retroformer.run.store.marks import Mark
from retroformer.run.store.rows import stored_time

_ROUNDING = 1e-6
"""Largest error of a rating or score that another program wrote."""

CASE_BYTES = 16 * MIB
"""Largest case, as JSON."""
MOST_NUMBER = 1023
"""Largest number of a candidate or repeat in a case."""

CaseNumber = Annotated[int, Field(ge=0, le=MOST_NUMBER)]
Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _not_empty(name: str) -> str:
    if not name:
        raise ValueError("it is empty: give every task a name")
    return name


def _is_time(text: str | None) -> str | None:
    with suppress(OverflowError):
        if text is None or stored_time(datetime.fromisoformat(text)) == text:
            return text
    raise ValueError(f"{text!r} is not written as {stored_time(datetime.now(UTC))}")


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
    sha256: Annotated[str, OMIT_EMPTY] = ""
    """Hash of the task, in an exact export of tasks from a user's own file."""


class CaseAttempt(Record):
    """One attempt: its score, and what the agent did in at least one of three forms.

    If there are several, the steps are what the reflector reads, else the messages. Of an attempt with an outcome, the
    steps are stored as they are, with their rewards.
    """

    score: Reward
    """From 0 to 1; in a case with an origin, any return of its environment."""
    steps: Annotated[tuple[Step, ...] | None, OMIT_NONE] = None
    messages: Annotated[tuple[ChatMessage, ...] | None, OMIT_NONE] = None
    output: Annotated[str | None, OMIT_NONE] = None
    usage: Annotated[Usage, Field(exclude_if=lambda usage: usage == Usage())] = Usage()
    memory: Annotated[tuple[str, ...], OMIT_EMPTY] = ()
    """Advice that the agent had read, oldest first, as the reflector is shown it."""
    outcome: Annotated[Outcome | None, OMIT_NONE] = None
    """None: a score of 1 is a success."""
    ending: Annotated[Ending | None, OMIT_NONE] = None
    judged: Annotated[bool | None, OMIT_NONE] = None
    opening: Annotated[str | None, OMIT_NONE] = None
    """First observation, if it is not the input of the task."""
    stored_at: Annotated[str | None, AfterValidator(_is_time), OMIT_NONE] = None
    """Time when a run stored it, in UTC with microseconds: live outcomes are compared in this order."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.steps is None and self.messages is None and self.output is None:
            raise ValueError("it has no steps, messages or output: give at least one of them")
        if self.outcome is None:
            return self
        if self.outcome is Outcome.INVALID:
            raise ValueError("outcome: an invalid attempt is not a fact")
        if self.steps is None or self.ending is None:
            raise ValueError("an attempt with an outcome needs its steps and its ending")
        earned = math.fsum(step.reward for step in self.steps)
        if abs(earned - self.score) > _ROUNDING:
            raise ValueError(f"score is {self.score:g}, but its steps earn {earned:g}")
        return self


class CaseAdvice(Record):
    """Advice on the attempt, and the model that wrote it, if that is recorded."""

    text: str
    model: str = ""
    is_cut: Annotated[bool, OMIT_EMPTY] = False
    """True if the text was cut at the limit of tokens, so that it is not taught as complete."""
    reflection: Annotated[Reflection | None, OMIT_NONE] = None
    """The advice as a run stores it, with the reflector's prompt; without it, an import renders the prompt."""


class Origin(Record):
    """Place of the facts of a case in a run, and the conditions under which they were made."""

    environment: Name
    attempt: Key
    """Key of the attempt. If the retry is in another arm, the attempt belongs to another case of the file."""
    retry: Annotated[Key | None, OMIT_NONE] = None
    """Key of the advice and of the retry."""
    rated_by: str = "score"
    """Name of the return that the scores are."""
    conditions: Annotated[dict[str, JsonValue] | None, OMIT_NONE] = None
    """None: those of an import of another program's records."""
    marks: Annotated[tuple[Mark, ...], OMIT_EMPTY] = ()
    """What people said of the story that the case belongs to."""

    @property
    def arm(self) -> str:
        return (self.retry or self.attempt).arm

    def story_of(self, task_id: str) -> str:
        """Return the mark of the story by which the keys differ from the id of their task; empty if they are equal."""
        return self.attempt.task_id.removeprefix(task_id).removeprefix("@")

    @model_validator(mode="after")
    def _retry_is_the_next_trial(self) -> Self:
        before, after = self.attempt, self.retry
        if after is not None and (after.task_id, after.trial) != (before.task_id, before.trial + 1):
            raise ValueError("retry: it is not the trial after the attempt")
        return self


class Case(Record):
    """An attempt, the advice on it, the retry that read the advice, and the rating.

    Without advice and retry it is an attempt to learn from: a failure waits for advice.
    """

    task: CaseTask
    trial: Annotated[int, Field(ge=0, lt=LAST_TRIAL)] = 0
    """Number of the attempt among those at its task, from 0; the retry is the next one."""
    candidate: CaseNumber = 0
    """Number of the advice among those on this attempt."""
    repeat: CaseNumber = 0
    """Number of the retry among those that read this advice."""
    attempt: CaseAttempt
    advice: Annotated[CaseAdvice | None, OMIT_NONE] = None
    retry: Annotated[CaseAttempt | None, OMIT_NONE] = None
    rating: Annotated[float | None, OMIT_NONE] = None
    """Score of the retry minus that of the attempt. A file may leave it out, as it follows from them."""
    origin: Annotated[Origin | None, OMIT_NONE] = None

    @property
    def gain(self) -> float | None:
        """Score of the retry minus that of the attempt (Retroformer, section 4.2); None without a retry."""
        return None if self.retry is None else self.retry.score - self.attempt.score

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.origin is None:
            for name, attempt in (("attempt", self.attempt), ("retry", self.retry)):
                if attempt is not None and not 0 <= attempt.score <= 1:
                    raise ValueError(f"{name}.score is {attempt.score:g}: it must be from 0 to 1")
        elif (self.advice or self.retry) and self.origin.retry is None:
            raise ValueError("origin.retry: the field is missing")
        if self.rating is not None and (self.gain is None or not abs(self.rating - self.gain) <= _ROUNDING):
            raise ValueError(f"rating is {self.rating:g}, but the scores gain {self.gain}: correct it or leave it out")
        return self


_MODELS = (Case, CaseTask, CaseAttempt, CaseAdvice, Step, ChatMessage, ContentPart, ToolCall, FunctionCall, Usage)
_NAMES = sorted({name for model in _MODELS for name in model.model_fields})
_TYPES = ("str", "float", "int", "bool", "list", "dict")
"""Types in the paths of pydantic's errors, which tell the types that it has tried apart."""
_FREE = ("input", "data", "conditions")
"""Fields of a case that hold any JSON."""
_LONGEST_EXCERPT = 60
"""Largest number of characters of a wrong value in a sentence."""


def parse_case(text: str, where: str) -> Case:
    """Parse a case from JSON without converting types: a score in quotes is wrong. `where` begins an error.

    Raises DamagedFile: it is not a case.
    """
    case: Case | None = None
    try:
        case = Case.model_validate_json(text, strict=True)
    except ValidationError as error:
        if error.errors(include_url=False)[0]["type"] == "json_invalid":
            raise _malformed(where, fault_of(error)) from None
    try:
        value = json_value(text)
        if case is None or any(map(_has_other_parts, (case.attempt, case.retry))):
            case = Case.model_validate_json(_in_our_form(value), strict=True)
        return case
    except ValidationError as error:
        raise _malformed(where, fault_of(error)) from None
    except ValueError as error:
        raise _malformed(where, f", {error}") from None


def _malformed(where: str, fault: str) -> DamagedFile:
    return DamagedFile(f"{where}{fault}; correct it and read the file again.")


def _has_other_parts(attempt: CaseAttempt | None) -> bool:
    """Return True if messages have parts that are no text, such as the calls of Anthropic's messages."""
    contents = [message.content for message in (attempt and attempt.messages) or ()]
    return any(part.text is None for content in contents if isinstance(content, tuple) for part in content)


def _in_our_form(value: Any) -> str:
    """Return a case without nulls, and its messages in the form of the chat API."""
    case = without_nulls(value)
    for place in ("attempt", "retry") if isinstance(case, dict) else ():
        attempt = case.get(place)
        messages = attempt.get("messages") if isinstance(attempt, dict) else None
        if attempt and isinstance(messages, list):
            attempt["messages"] = _chat_messages(messages, f"{place}.messages")
    return json.dumps(case)


def _chat_messages(messages: list[Any], where: str) -> list[Any]:
    """Return messages without fields that clients add: thinking, and empty ones such as `refusal`.

    Raises ValueError: messages of another API cannot be read.
    """
    own = ChatMessage.model_fields
    if any(isinstance(message, dict) and _is_of_another_api(message) for message in messages):
        return [message.model_dump(mode="json") for message in clean_messages(messages, where)]
    return [
        {name: field for name, field in drop_thinking_fields(message).items() if name in own or field}
        if isinstance(message, dict)
        else message
        for message in messages
    ]


def _is_of_another_api(message: dict[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    other_parts = any(isinstance(part, dict) and ("type" not in part or "text" not in part) for part in parts)
    return "role" not in message or "parts" in message or other_parts


def without_nulls(value: Any) -> Any:
    """Return a case without the fields that are null: tables have every field in every row. Free JSON stays."""
    if isinstance(value, dict):
        return {
            name: field if name in _FREE else without_nulls(field) for name, field in value.items() if field is not None
        }
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def fault_of(error: ValidationError) -> str:
    """Describe what is wrong with a case, as the end of a sentence: `, attempt.score: Input should be ...`.

    A value that fits none of several types is described by the error that is deepest inside it.
    """
    faults = error.errors(include_url=False)
    is_union = len(_path(faults[0])) < len(faults[0]["loc"])
    fault = max(faults, key=lambda error_item: len(_path(error_item))) if is_union else faults[0]
    path, kind = _path(fault), fault["type"]
    where, message = f", {'.'.join(path)}" if path else "", fault["msg"].removeprefix("Value error, ")
    if kind == "extra_forbidden":
        close = get_close_matches(str(fault["loc"][-1]), _NAMES, n=1)
        return f"{where}: there is no such field" + (f" (did you mean {close[0]!r}?)" if close else "")
    if kind == "missing":
        return f"{where}: the field is missing"
    if kind == "json_invalid":
        return f": it is not JSON ({message.removeprefix('Invalid JSON: ').replace(' at line 1 column', ' at column')})"
    if kind == "value_error":
        return f"{where}: {message}"
    return f"{where}: {message}, not {_excerpt(repr(fault['input']))}"


def _excerpt(text: str) -> str:
    """Return a text on one line, cut to `_LONGEST_EXCERPT` characters."""
    text = re.sub(r"\s+", " ", text)
    return text if len(text) <= _LONGEST_EXCERPT else f"{text[:_LONGEST_EXCERPT]}…"


def _path(fault: ErrorDetails) -> list[str]:
    """Return the fields that lead to a value, without the types that pydantic has tried for it."""
    loc = fault["loc"]
    # An unknown field ends the path under any name, also under that of a type.
    known = loc[:-1] if fault["type"] == "extra_forbidden" else loc
    fields = [part for part in known if isinstance(part, int) or (part.isidentifier() and part not in _TYPES)]
    unknown = [_excerpt(name if name.isprintable() and name else repr(name)) for name in map(str, loc[len(known) :])]
    return [*map(str, fields), *unknown]
