"""What an agent did in one attempt: the calls of its model merged into one conversation, or its tools and output."""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import TypeAdapter

from retroformer.integrations.otlp.messages import messages
from retroformer.integrations.otlp.span import Span, checked
from retroformer.method.conversation import ChatMessage
from retroformer.method.records import Step, Usage

_KIND = "openinference.span.kind"
_OPERATION = "gen_ai.operation.name"
_MODEL_CALLS = ("chat", "generate_content", "text_completion")
_USAGE = {
    "llm.token_count.prompt": "prompt_tokens",
    "llm.token_count.completion": "completion_tokens",
    "llm.cost.total": "dollars",
    "gen_ai.usage.input_tokens": "prompt_tokens",
    "gen_ai.usage.output_tokens": "completion_tokens",
}
"""Field of the usage by the attribute that holds it; later ones count if there are two."""
_COUNTS: dict[str, TypeAdapter[Any]] = {
    field: TypeAdapter(Annotated[kind.annotation, *kind.metadata])  # type: ignore[arg-type]  # Known at run time.
    for field, kind in Usage.model_fields.items()
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
    used = {
        field: checked(_COUNTS[field], span.attributes[name], span.place(name))
        for name, field in _USAGE.items()
        if name in span.attributes
    }
    return ModelCall(messages(span, "input"), messages(span, "output")[:1], Usage(calls=1, **used))


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
        if span.attributes.get(_KIND) == "TOOL":
            attributes = ("tool.name", "input.value", "output.value")
        elif span.attributes.get(_OPERATION) == "execute_tool":
            attributes = ("gen_ai.tool.name", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result")
        else:
            continue
        name, shown, result = (_shown(span.attributes.get(attribute)) for attribute in attributes)
        steps.append(Step(action=f"{name or span.name}({shown})", observation=result))
    return tuple(steps)


def _same(one: ChatMessage, other: ChatMessage) -> bool:
    """Return True if two messages say the same; clients change ids, empty contents and the form of arguments."""
    first, second = (
        (message.role, message.content or "", [call.function.name for call in message.tool_calls])
        for message in (one, other)
    )
    return first == second


def _shown(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)
