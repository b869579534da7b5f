"""Reads the messages of a model call from OpenTelemetry's `gen_ai.*` attributes.

    gen_ai.input.messages = '[{"role": "user", "parts": [{"type": "text", "content": "Refund 1."}]}]'

They are attributes of the span, or of an event of it; their value is JSON text or a structured value.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from retroformer.cases.case import ChatMessage, ContentPart, FunctionCall, ToolCall
from retroformer.errors import MissingInput
from retroformer.files.bounded_json import parse_json
from retroformer.integrations.otlp.span import Span, field_path
from retroformer.messages import standard_role

_INSTRUCTIONS = "gen_ai.system_instructions"
_THINKING = ("reasoning", "thinking")


class _GenAiPart(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    type: Annotated[str, Field(min_length=1)]


class _GenAiMessage(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    role: str
    parts: list[_GenAiPart]


_MESSAGES = TypeAdapter(list[_GenAiMessage])
_PARTS = TypeAdapter(list[_GenAiPart])


def messages(span: Span, direction: str) -> tuple[ChatMessage, ...]:
    """Return the messages of a direction, `input` or `output`; () if the span has none of this convention.

    Raises:
        MissingInput: an attribute is malformed.
    """
    name = f"gen_ai.{direction}.messages"
    read = list[ChatMessage]()
    if direction == "input" and (value := _attribute(span, _INSTRUCTIONS)) is not None:
        parts = _validated(span, _INSTRUCTIONS, _PARTS, value)
        read += _Reader(span, _INSTRUCTIONS).message("system", parts, ())
    if (value := _attribute(span, name)) is not None:
        for number, message in enumerate(_validated(span, name, _MESSAGES, value)):
            try:
                role = standard_role(message.role)
            except ValueError as error:
                raise MissingInput(f"{span.place(name)}[{number}].role: {error}.") from None
            read += _Reader(span, name).message(role, message.parts, (number, "parts"))
    return tuple(read)


class _Reader:
    """Reader of the parts of one attribute."""

    def __init__(self, span: Span, name: str) -> None:
        self._span, self._name = span, name

    def message(self, role: str, parts: list[_GenAiPart], place: tuple[int | str, ...]) -> list[ChatMessage]:
        """Return a message; for results of tools one each, as the OpenAI API has them."""
        results, calls, content = list[ChatMessage](), list[ToolCall](), list[ContentPart]()
        for number, part in enumerate(parts):
            fields, inner = part.model_extra or {}, (*place, number)
            if part.type == "tool_call":
                calls.append(self._call(fields, inner))
            elif part.type == "tool_call_response":
                results.append(self._result(fields, inner))
            elif part.type == "text":
                content.append(ContentPart(type="text", text=self._text(fields, "content", inner)))
            elif part.type not in _THINKING:
                content.append(ContentPart(type=part.type, data=fields))
        if results and not (calls or content):
            return results
        said: str | tuple[ContentPart, ...] | None = tuple(content) or None
        if content and all(part.text is not None for part in content):
            said = "\n".join(part.text or "" for part in content)
        return [ChatMessage(role=role, content=said, tool_calls=tuple(calls)), *results]

    def _call(self, fields: Mapping[str, Any], place: tuple[int | str, ...]) -> ToolCall:
        name = self._text(fields, "name", place)
        arguments = fields.get("arguments")
        shown = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        return ToolCall(id=self._identity(fields, place), function=FunctionCall(name=name, arguments=shown))

    def _result(self, fields: Mapping[str, Any], place: tuple[int | str, ...]) -> ChatMessage:
        # Earlier versions of the conventions call it `result`.
        result = fields.get("response", fields.get("result"))
        shown = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        return ChatMessage(role="tool", content=shown, tool_call_id=self._identity(fields, place))

    def _identity(self, fields: Mapping[str, Any], place: tuple[int | str, ...]) -> str | None:
        return None if fields.get("id") is None else self._text(fields, "id", place)

    def _text(self, fields: Mapping[str, Any], name: str, place: tuple[int | str, ...]) -> str:
        value = fields.get(name)
        if not isinstance(value, str):
            self._refuse((*place, name), f"is {repr(value)[:80]}: it must be a text.")
        return value

    def _refuse(self, place: tuple[int | str, ...], fault: str) -> NoReturn:
        path = field_path(place)
        raise MissingInput(f"{self._span.place(self._name)}{path if path.startswith('[') else f'.{path}'} {fault}")


def _attribute(span: Span, name: str) -> Any:
    """Return the value of an attribute of the span or of one of its events; None without it."""
    for attributes in (span.attributes, *(event.attributes for event in span.events)):
        if name in attributes:
            value = attributes[name]
            return parse_json(value, span.place(name)) if isinstance(value, str) else value
    return None


def _validated(span: Span, name: str, kind: TypeAdapter[Any], value: Any) -> Any:
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = field_path(fault["loc"])
        path = f".{path}" if path and not path.startswith("[") else path
        raise MissingInput(f"{span.place(name)}{path}: {fault['msg']}.") from None
