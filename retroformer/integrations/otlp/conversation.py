"""Reads what an agent did from its spans: the calls of its model as one conversation, or else its tools.

Messages are attributes of OpenInference, or else of OpenTelemetry's `gen_ai.*`:

    llm.input_messages.0.message.role = "user"
    llm.output_messages.0.message.tool_calls.0.tool_call.function.name = "search"

    gen_ai.input.messages = '[{"role": "user", "parts": [{"type": "text", "content": "Refund 1."}]}]'

Those of `gen_ai.*` may also be attributes of an event, and structured values in place of JSON text.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

from pydantic import TypeAdapter

from retroformer.agents.messages import clean_messages
from retroformer.errors import MissingInput
from retroformer.files.bounded import parse_json
from retroformer.integrations.otlp.wire import Span, validate
from retroformer.method.records import ChatMessage, Step, Usage

_KIND = "openinference.span.kind"
_OPERATION = "gen_ai.operation.name"
_MODEL_CALLS = ("chat", "generate_content", "text_completion")
_TOOL_ATTRIBUTES = {
    "TOOL": ("tool.name", "input.value", "output.value"),
    "execute_tool": ("gen_ai.tool.name", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
}
"""Attributes with the name, the arguments and the result of a tool's call, by the kind of its span."""
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
_WRAPPERS = ("message", "message_content", "tool_call")
"""Parts of OpenInference's names that stand between a number and its fields."""
_INSTRUCTIONS = "gen_ai.system_instructions"
_LONGEST_NUMBER, _MOST_LEVELS = 9, 6
_MESSAGES = TypeAdapter(list[dict[str, Any]])
Messages = tuple[ChatMessage, ...]


def read_conversation(calls: Iterable[Span]) -> tuple[Messages, Usage]:
    """Return the messages of calls of models, in order of time, as one conversation, and the usage.

    A call normally repeats all messages before it. What a call does not repeat, such as the conversation of another
    agent, stays in front of its own messages. Raises MissingInput if an attribute is malformed.
    """
    merged: Messages = ()
    used = Usage()
    for span in calls:
        request, answer, usage = model_call(span)
        shared = 0
        while shared < min(len(merged), len(request)) and _identity(merged[shared]) == _identity(request[shared]):
            shared += 1
        merged, used = (*merged, *request[shared:], *answer), used + usage
    return merged, used


def is_model_call(span: Span) -> bool:
    """Return True if the span is a call of a model, by either convention."""
    return span.attributes.get(_KIND) == "LLM" or span.attributes.get(_OPERATION) in _MODEL_CALLS


def model_call(span: Span) -> tuple[Messages, Messages, Usage]:
    """Return what a model read, its answer and the usage. Raises MissingInput if an attribute is malformed."""
    used = {
        field: validate(_COUNTS[field], span.attributes[name], span.place(name))
        for name, field in _USAGE.items()
        if name in span.attributes
    }
    return _messages(span, "input"), _messages(span, "output")[:1], Usage(calls=1, **used)


def _messages(span: Span, direction: str) -> Messages:
    """Return the messages of a direction, `input` or `output`, without thinking; () if the span has none."""
    return _openinference(span, f"llm.{direction}_messages") or tuple(_gen_ai(span, direction))


def _openinference(span: Span, prefix: str) -> Messages:
    root = dict[Any, Any]()
    for name, value in span.attributes.items():
        if not name.startswith(f"{prefix}."):
            continue
        node, (*parts, last) = root, name.removeprefix(f"{prefix}.").split(".", _MOST_LEVELS)
        for part in parts:
            if part not in _WRAPPERS:
                is_number = part.isdecimal() and len(part) <= _LONGEST_NUMBER
                inner = node.setdefault(int(part) if is_number else part, {})
                node = inner if isinstance(inner, dict) else {}
        node[last] = value
    if unnumbered := [name for name in root if not isinstance(name, int)]:
        raise MissingInput(f"{span.place(prefix)}.{unnumbered[0]} has no number.")
    messages = [
        message
        | {"content": message.get("content", _in_order(message.get("contents")))}
        | {"tool_calls": _in_order(message.get("tool_calls"))}
        for message in _in_order(root) or ()
    ]
    return _read_messages(messages, span.place(prefix))


def _in_order(numbered: Any) -> list[Any] | None:
    """Return the values under numbers, in order; None if there are none."""
    if not isinstance(numbered, dict):
        return None
    return [numbered[number] for number in sorted(name for name in numbered if isinstance(name, int))] or None


def _gen_ai(span: Span, direction: str) -> Iterator[ChatMessage]:
    for name in (*((_INSTRUCTIONS,) if direction == "input" else ()), f"gen_ai.{direction}.messages"):
        value = next((at[name] for at in span.attribute_sets if name in at), None)
        if value is None:
            continue
        place = span.place(name)
        read = parse_json(value, place) if isinstance(value, str) else value
        if name == _INSTRUCTIONS:
            read = [{"role": "system", "parts": read}]
        yield from _read_messages(validate(_MESSAGES, read, place), place)


def _read_messages(messages: Sequence[Any], place: str) -> Messages:
    try:
        return clean_messages(messages, place)
    except ValueError as error:
        raise MissingInput(f"{error}.") from None


def tool_steps(spans: Iterable[Span]) -> Iterator[Step]:
    """Yield the calls of tools as steps."""
    for span in spans:
        kinds = (span.attributes.get(_KIND), span.attributes.get(_OPERATION))
        attributes = next((names for kind, names in _TOOL_ATTRIBUTES.items() if kind in kinds), None)
        if attributes is not None:
            values = [span.attributes.get(attribute) for attribute in attributes]
            name, arguments, result = ("" if value is None else str(value) for value in values)
            yield Step(action=f"{name or span.name}({arguments})", observation=result)


def _identity(message: ChatMessage) -> tuple[Any, ...]:
    """Return what clients keep when they repeat a message: not ids, empty contents and the form of arguments."""
    return message.role, message.content or "", [call.function.name for call in message.tool_calls]
