"""What an agent did in one attempt: the calls of its model merged into one conversation, or its tools and output."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from retroformer.cases.case import ChatMessage
from retroformer.integrations.otlp import gen_ai, openinference
from retroformer.integrations.otlp.span import Span
from retroformer.records import Step, Usage

_KIND = "openinference.span.kind"
_OPERATION = "gen_ai.operation.name"
_MODEL_CALLS = ("chat", "generate_content", "text_completion")
_TOKENS = {
    "prompt_tokens": ("gen_ai.usage.input_tokens", "llm.token_count.prompt"),
    "completion_tokens": ("gen_ai.usage.output_tokens", "llm.token_count.completion"),
    "dollars": ("llm.cost.total",),
}


class ModelCall(NamedTuple):
    """One call of a model."""

    request: tuple[ChatMessage, ...]
    answer: tuple[ChatMessage, ...]
    usage: Usage


def is_model_call(span: Span) -> bool:
    """Return True if the span is a call of a model, by either convention."""
    return span.attributes.get(_KIND) == "LLM" or span.attributes.get(_OPERATION) in _MODEL_CALLS


def model_call(span: Span) -> ModelCall:
    """Return what a model read and answered. Raises MissingInput if an attribute is malformed."""
    request, answer = (
        openinference.messages(span, direction) or gen_ai.messages(span, direction) for direction in ("input", "output")
    )
    return ModelCall(request, answer[:1], _usage(span))


def conversation(calls: Sequence[ModelCall]) -> tuple[ChatMessage, ...]:
    """Return one conversation from calls in order of time.

    A call normally repeats all messages before it. What a call does not repeat, such as the conversation of another
    agent, stays in front of its own messages.
    """
    merged: tuple[ChatMessage, ...] = ()
    for call in calls:
        shared = 0
        while shared < min(len(merged), len(call.request)) and _same(merged[shared], call.request[shared]):
            shared += 1
        merged = (*merged, *call.request[shared:], *call.answer)
    return merged


def tool_steps(spans: Sequence[Span]) -> tuple[Step, ...]:
    """Return the calls of tools as steps, for traces without messages."""
    steps = list[Step]()
    for span in spans:
        values = span.attributes
        if values.get(_KIND) == "TOOL":
            name, shown, result = (
                values.get("tool.name", span.name),
                values.get("input.value"),
                values.get("output.value"),
            )
        elif values.get(_OPERATION) == "execute_tool":
            name, shown, result = (
                values.get(f"gen_ai.tool.{field}") for field in ("name", "call.arguments", "call.result")
            )
        else:
            continue
        steps.append(Step(action=f"{name or span.name}({_shown(shown)})", observation=_shown(result)))
    return tuple(steps)


def _same(one: ChatMessage, other: ChatMessage) -> bool:
    """Return True if two messages say the same; clients change ids, empty contents and the form of arguments."""
    return (one.role, one.content or "", [call.function.name for call in one.tool_calls]) == (
        other.role,
        other.content or "",
        [call.function.name for call in other.tool_calls],
    )


def _usage(span: Span) -> Usage:
    counted: dict[str, Any] = {"calls": 1}
    for field, names in _TOKENS.items():
        for name in names:
            if name in span.attributes:
                counted[field] = span.attributes[name]
                try:
                    Usage.model_validate(counted, strict=field != "dollars")
                except ValidationError as error:
                    span.refuse(name, f"is {repr(counted[field])[:80]}: {error.errors()[0]['msg']}.")
                break
    return Usage.model_validate(counted)


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)
