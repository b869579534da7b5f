"""What an agent that is not ours returns for one attempt: its steps in one of three forms, its answer and its score.

    {"score": 0.0, "steps": [{"thought": "...", "action": "...", "observation": "..."}]}
    {"score": 1.0, "messages": [{"role": "assistant", "content": null, "tool_calls": [...]}, ...]}
    {"score": 0.5, "output": "42"}

`usage` may hold calls, prompt_tokens, completion_tokens and dollars, for the accounts. A text alone is the output, and
a list is the messages.
"""

import json
import math
import re
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from retroformer.agents.messages import clean_messages, steps_of
from retroformer.endpoint.answers import strip_thinking
from retroformer.files.bounded import first_fault
from retroformer.files.text import storable
from retroformer.method.records import ChatMessage, Ending, Outcome, Step, Task, Trajectory, Usage

_ROUNDING = 1e-9
"""A mean of ones, or a sum of weights, may be a little above or below 1."""

_TEXT_FIELDS = ("input", "prompt", "question", "task")
"""Fields of a task that hold its text, the first that is there."""
_ANSWER_FIELD = re.compile(
    # The last word of the name, the first word, or the whole name.
    "(.* )?((correct|expected|gold|golden|reference)?answers?|labels?|references?|rubrics?|solutions?|targets?|tests?)"
    "|(canonical|correct|expected|expectedoutputs?|gold|golden|ideal|oracle)( .*)?"
    "|answer ?key|fail ?to ?pass|(ground ?)?truths?|pass ?to ?pass|reward ?model|test ?(cases?|list|patch)"
)
"""Fields, as words in lower case, by which a score knows what is right: no reflector sees them."""
_WORD = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

Score = Callable[[Any, str], Any]
"""Function from a task and the agent's answer to a score from 0 to 1."""


class _Form(BaseModel):
    score: Any = None
    steps: tuple[Step, ...] | None = None
    messages: list[Any] | None = None
    output: str | None = None
    usage: Annotated[Usage, BeforeValidator(lambda usage: _known_usage(usage))] = Usage()


class AttemptResult(BaseModel):
    """Steps, answer, score from 0 to 1 and usage of one attempt."""

    model_config = ConfigDict(frozen=True)

    steps: tuple[Step, ...]
    output: str
    score: float
    usage: Usage = Usage()
    messages: tuple[ChatMessage, ...] | None = None
    """Conversation without thinking, if the agent gave one."""


def read_result(value: Any, task: Any, score: Score | None = None) -> AttemptResult:
    """Return what an agent returned in one form. Without a score in it, `score` rates the task and the answer.

    Raises ValueError, which names the field, if the value has another form, no score or no answer to rate.
    """
    form = _form(value)
    answered = not (form.output is None and form.steps is None and form.messages is None)
    # A report of an error or a line of a log is not an empty answer, which would be rated as a failure.
    if not answered and (
        any(key not in _Form.model_fields for key in value) or (form.score is None and score is not None)
    ):
        raise ValueError(f"there is no answer to rate: return a text, steps, messages or an output{_hint(value)}")
    messages = None if form.messages is None else clean_messages(form.messages)
    steps = tuple(map(_clean_step, form.steps if form.steps is not None else steps_of(messages or ())))
    output = strip_thinking(form.output) if form.output is not None else steps[-1].action if steps else ""
    if form.output is not None and not steps:
        steps = (Step(action=output, observation=""),)
    rated = form.score
    if rated is None:
        if score is None:
            raise ValueError("score is missing: return one from 0 to 1, or name a function that rates the answer")
        rated = score(task, output)
    return AttemptResult(steps=steps, output=output, score=parse_score(rated), usage=form.usage, messages=messages)


def as_trajectory(task: Task, opening: str, result: AttemptResult) -> Trajectory:
    """Return an attempt as a fact; its return is the score."""
    steps = result.steps or (Step(action=result.output, observation=""),)
    *before, last = (
        Step(thought=storable(step.thought), action=storable(step.action), observation=storable(step.observation))
        for step in steps
    )
    solved = result.score == 1
    return Trajectory(
        task=task,
        opening=opening,
        steps=(*before, last.model_copy(update={"reward": result.score})),
        outcome=Outcome.SUCCESS if solved else Outcome.FAILURE,
        ending=Ending.SOLVED if solved else Ending.TERMINATED,
        usage=result.usage,
        messages=result.messages,
    )


def text_of(task: Any) -> str:
    """Return the text of a task as the reflector reads it: a field of text, or else what is no id, split or answer."""
    # The task may be of the user's own type: anything may go wrong, and the agent must be called all the same.
    with suppress(Exception):
        fields = fields_of(task)
        if fields is None:
            return task if isinstance(task, str) else json.dumps(_shown(task), ensure_ascii=False, default=str)
        for name in _TEXT_FIELDS:
            if name in fields:
                return text_of(fields[name])
        shown = {name: value for name, value in _shown(fields).items() if name not in ("id", "split")}
        return json.dumps(shown or fields.get("id"), ensure_ascii=False, default=str)
    with suppress(Exception):
        return repr(_shown(task))
    return f"<{type(task).__name__}>"


def fields_of(task: Any) -> Mapping[Any, Any] | None:
    """Return the fields of a task that has some: a mapping, or a record of any kind."""
    if isinstance(task, Mapping):
        return task
    if is_dataclass(task) and not isinstance(task, type):
        return {field.name: getattr(task, field.name) for field in dataclass_fields(task)}
    method: Callable[[], Mapping[Any, Any]] | None = getattr(task, "model_dump", None) or getattr(task, "_asdict", None)
    if callable(method) and not isinstance(task, type):
        return method()
    # Records of attrs and msgspec.
    names = [field.name for field in getattr(type(task), "__attrs_attrs__", ())]
    names += getattr(type(task), "__struct_fields__", ())
    if names:
        return {name: getattr(task, name) for name in names}
    return vars(task) if isinstance(task, SimpleNamespace | Namespace) else None


def _shown(value: Any) -> Any:
    """Return a value without fields that hold an expected answer."""
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if (fields := fields_of(value)) is None:
        return value
    return {name: _shown(item) for name, item in fields.items() if not _ANSWER_FIELD.fullmatch(_words(name))}


def _words(name: Any) -> str:
    return " ".join(_WORD.findall(str(name))).lower()


def _known_usage(usage: Any) -> Any:
    """Return the fields that are counted: servers report more, or nothing."""
    if usage is None:
        return Usage()
    return {name: usage[name] for name in Usage.model_fields if name in usage} if isinstance(usage, Mapping) else usage


def _clean_step(step: Step) -> Step:
    """Return a step without thinking, which no reflector reads, and without a reward: the score alone is the return."""
    said = {"thought": strip_thinking(step.thought), "action": strip_thinking(step.action)}
    return step.model_copy(update={"reward": 0.0, **said})


def is_result(value: Any) -> bool:
    """Return True if a value has one of the forms: a text, a list of messages, or an object with such a field."""
    if isinstance(value, Mapping):
        return any(name in value for name in ("steps", "messages", "output", "score"))
    return isinstance(value, str | list | tuple)


def parse_score(score: Any) -> float:
    """Return a score as a number from 0 to 1; True is 1, and so is a sum that rounding keeps from 1.

    Raises ValueError if it is none.
    """
    try:
        number = float(score) if isinstance(score, bool | int | float) or hasattr(score, "__float__") else math.nan
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not -_ROUNDING <= number <= 1 + _ROUNDING:
        raise ValueError(f"score is {repr(score)[:80]}: it must be a number from 0 to 1")
    return 1.0 if number >= 1 - _ROUNDING else max(0.0, number)


def _hint(value: Mapping[Any, Any]) -> str:
    """Return the name that was probably meant by one of the keys."""
    for key in value:
        if near := get_close_matches(str(key), ("steps", "messages", "output"), 1):
            return f"; {str(key)[:40]!r} is none of them, did you mean {near[0]}?"
    return ""


def _form(value: Any) -> _Form:
    if isinstance(value, str):
        return _Form(output=value)
    if isinstance(value, list | tuple):
        return _Form(messages=list(value))
    if not isinstance(value, Mapping):
        raise ValueError(f"the agent returned {type(value).__name__}: return a text, messages or an object")
    fields = {name: value[name] for name in _Form.model_fields if name in value}
    try:
        return _Form.model_validate(fields)
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None
