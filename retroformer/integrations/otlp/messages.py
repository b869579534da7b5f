"""Reads the messages of a model call from attributes of OpenInference, or else of OpenTelemetry's `gen_ai.*`.

    llm.input_messages.0.message.role = "user"
    llm.output_messages.0.message.tool_calls.0.tool_call.function.name = "search"

    gen_ai.input.messages = '[{"role": "user", "parts": [{"type": "text", "content": "Refund 1."}]}]'

Those of `gen_ai.*` may also be attributes of an event, and structured values in place of JSON text.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationInfo, field_validator

from retroformer.agents.messages import kept_messages, standard_role
from retroformer.endpoint.answers import part_without_thinking
from retroformer.files.bounded import parse_json
from retroformer.integrations.otlp.span import Span, checked
from retroformer.method.conversation import ChatMessage

_INSTRUCTIONS = "gen_ai.system_instructions"
_LONGEST_NUMBER, _MOST_LEVELS = 9, 6

_Role = Annotated[str, AfterValidator(standard_role)]
_Named = Annotated[str, Field(min_length=1)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Function(_Fields):
    name: _Named
    arguments: str = "{}"


class _Call(_Fields):
    id: str | None = None
    function: _Function


class _CallItem(_Fields):
    tool_call: _Call


class _Content(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    type: str = "text"
    text: str | None = None


class _ContentItem(_Fields):
    message_content: _Content = _Content()


class _Message(_Fields):
    role: _Role
    content: str | None = None
    contents: dict[int, _ContentItem] = {}
    tool_calls: dict[int, _CallItem] = {}
    tool_call_id: str | None = None
    name: str | None = None


class _MessageItem(_Fields):
    message: _Message


class _MessagePart(BaseModel):
    """Part of a message of `gen_ai.*`."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: _Named
    content: Annotated[Any, Field(validate_default=True)] = None
    name: Annotated[Any, Field(validate_default=True)] = None
    id: Any = None

    @field_validator("content", "name", "id")
    @classmethod
    def _is_text(cls, value: Any, info: ValidationInfo) -> Any:
        needed = {"content": "text", "name": "tool_call", "id": "tool_call"}[str(info.field_name)]
        if info.data.get("type") == needed and not isinstance(value, str) and (value, info.field_name) != (None, "id"):
            raise ValueError("it must be a text")
        return value


class _PartsMessage(_Fields):
    role: _Role
    parts: list[_MessagePart]


_ITEMS = TypeAdapter(dict[int, _MessageItem])
_MESSAGES = TypeAdapter(list[_PartsMessage])
_PARTS = TypeAdapter(list[_MessagePart])


def messages(span: Span, direction: str) -> tuple[ChatMessage, ...]:
    """Return the messages of a direction, `input` or `output`, without thinking; () if the span has none.

    Raises:
        MissingInput: an attribute is malformed.
    """
    return kept_messages(_openinference(span, f"llm.{direction}_messages") or list(_gen_ai(span, direction)))


def _openinference(span: Span, prefix: str) -> list[dict[str, Any]]:
    items: dict[int, _MessageItem] = checked(_ITEMS, _nested(span, f"{prefix}."), span.place(prefix))
    read = list[dict[str, Any]]()
    for _, item in sorted(items.items()):
        message = item.message
        content: Any = message.content
        if content is None and message.contents:
            content = [item.message_content.model_dump() for _, item in sorted(message.contents.items())]
        calls = [item.tool_call.model_dump() for _, item in sorted(message.tool_calls.items())]
        read.append(message.model_dump() | {"content": content, "tool_calls": calls})
    return read


def _nested(span: Span, prefix: str) -> dict[Any, Any]:
    """Return the attributes below a prefix as nested objects; numbers in their names are integers."""
    root = dict[Any, Any]()
    for name, value in span.attributes.items():
        if not name.startswith(prefix):
            continue
        node, (*parts, last) = root, name.removeprefix(prefix).split(".", _MOST_LEVELS)
        for part in parts:
            is_number = part.isascii() and part.isdigit() and len(part) <= _LONGEST_NUMBER
            inner = node.setdefault(int(part) if is_number else part, {})
            node = inner if isinstance(inner, dict) else {}
        node[last] = value
    return root


def _gen_ai(span: Span, direction: str) -> Iterator[dict[str, Any]]:
    wanted: list[tuple[str, TypeAdapter[Any]]] = [(f"gen_ai.{direction}.messages", _MESSAGES)]
    for name, kind in [(_INSTRUCTIONS, _PARTS), *wanted] if direction == "input" else wanted:
        found = (at for at in (span.attributes, *(event.attributes for event in span.events)) if name in at)
        if (value := next(found, {}).get(name)) is None:
            continue
        place = span.place(name)
        read = checked(kind, parse_json(value, place) if isinstance(value, str) else value, place)
        for message in read if kind is _MESSAGES else [_PartsMessage(role="system", parts=read)]:
            yield from _openai_messages(message.role, message.parts)


def _openai_messages(role: str, parts: Sequence[_MessagePart]) -> Iterator[dict[str, Any]]:
    """Yield a message, and then each result of a tool as a message of its own, as the OpenAI API has them."""
    results, calls, content = [], [], []
    for part in parts:
        fields = part.model_dump(exclude_unset=True)
        if part.type == "tool_call":
            calls.append({"id": part.id, "function": {"name": part.name, "arguments": fields.get("arguments")}})
        elif part.type == "tool_call_response":
            # Earlier versions of the conventions call it `result`.
            result = fields.get("response", fields.get("result"))
            shown = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            results.append({"role": "tool", "content": shown, "tool_call_id": part.id})
        elif part_without_thinking(fields) is not None:
            content.append({"type": "text", "text": part.content} if part.type == "text" else fields)
    if calls or content or not results:
        texts = [str(part.get("text")) for part in content if part["type"] == "text"]
        said: Any = "\n".join(texts) if len(texts) == len(content) else content
        yield {"role": role, "content": said if content else None, "tool_calls": calls}
    yield from results
