"""Reads the messages of a model call from attributes of OpenInference.

llm.input_messages.0.message.role = "user"
llm.output_messages.0.message.tool_calls.0.tool_call.function.name = "search"
"""

from collections.abc import Mapping
from typing import Any

from retroformer.cases.case import ChatMessage, ContentPart, FunctionCall, ToolCall
from retroformer.errors import MissingInput
from retroformer.integrations.otlp.span import Span
from retroformer.messages import standard_role

_THINKING = ("reasoning", "thinking")


def messages(span: Span, direction: str) -> tuple[ChatMessage, ...]:
    """Return the messages of a direction, `input` or `output`; () if the span has none of this convention.

    Raises:
        MissingInput: an attribute is malformed.
    """
    prefix = f"llm.{direction}_messages"
    return tuple(_message(span, place, fields) for place, fields in _items(span, prefix, span.attributes))


def _message(span: Span, place: str, fields: Mapping[str, Any]) -> ChatMessage:
    role_place = f"{place}.message.role"
    try:
        role = standard_role(_text(span, role_place, fields.get("message.role", "")))
    except ValueError as error:
        raise MissingInput(f"{span.place(role_place)}: {error}.") from None
    content: str | tuple[ContentPart, ...] | None = None
    if "message.content" in fields:
        content = _text(span, f"{place}.message.content", fields["message.content"])
    elif parts := _items(span, f"{place}.message.contents", _below(fields, "message.contents", place)):
        content = tuple(
            part for inner, described in parts if (part := _part(span, inner, described)).type not in _THINKING
        )
    calls = _items(span, f"{place}.message.tool_calls", _below(fields, "message.tool_calls", place))
    identity, name = fields.get("message.tool_call_id"), fields.get("message.name")
    return ChatMessage(
        role=role,
        content=content,
        tool_calls=tuple(_call(span, inner, described) for inner, described in calls),
        tool_call_id=None if identity is None else _text(span, f"{place}.message.tool_call_id", identity),
        name=None if name is None else _text(span, f"{place}.message.name", name),
    )


def _part(span: Span, place: str, fields: Mapping[str, Any]) -> ContentPart:
    kind = _text(span, f"{place}.message_content.type", fields.get("message_content.type", "text"))
    text = fields.get("message_content.text")
    rest = {
        name.removeprefix("message_content."): value
        for name, value in fields.items()
        if name not in ("message_content.type", "message_content.text")
    }
    return ContentPart(
        type=kind,
        text=None if text is None else _text(span, f"{place}.message_content.text", text),
        data={} if kind == "text" else rest,
    )


def _call(span: Span, place: str, fields: Mapping[str, Any]) -> ToolCall:
    name_place, arguments_place = (f"{place}.tool_call.function.{name}" for name in ("name", "arguments"))
    name = fields.get("tool_call.function.name")
    if not isinstance(name, str) or not name:
        span.refuse(name_place, f"is {repr(name)[:80]}: a tool call has a name.")
    arguments, identity = fields.get("tool_call.function.arguments", "{}"), fields.get("tool_call.id")
    return ToolCall(
        id=None if identity is None else _text(span, f"{place}.tool_call.id", identity),
        function=FunctionCall(name=name, arguments=_text(span, arguments_place, arguments)),
    )


def _items(span: Span, prefix: str, attributes: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the numbered attributes below a prefix: the place and the fields of each item, in order.

    Raises:
        MissingInput: an item has no number.
    """
    items: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        if not name.startswith(f"{prefix}."):
            continue
        number, _, field = name.removeprefix(f"{prefix}.").partition(".")
        if not (number.isascii() and number.isdigit() and len(number) < 10 and field):
            span.refuse(name, f"must have an item number after {prefix!r}.")
        items.setdefault(int(number), {})[field] = value
    return [(f"{prefix}.{number}", items[number]) for number in sorted(items)]


def _below(fields: Mapping[str, Any], name: str, place: str) -> dict[str, Any]:
    """Return the fields of a list in an item, under the names that they have in the span."""
    return {f"{place}.{field}": value for field, value in fields.items() if field.startswith(f"{name}.")}


def _text(span: Span, place: str, value: Any) -> str:
    if not isinstance(value, str):
        span.refuse(place, f"is {repr(value)[:80]}: it must be a text.")
    return value
