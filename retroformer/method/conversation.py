"""Messages of a conversation, in the form of the OpenAI chat API."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, JsonValue, model_validator

from retroformer.method.immutable import OMIT_EMPTY, OMIT_NONE, Record

THINKING = ("reasoning_content", "reasoning", "reasoning_details", "thinking", "thinking_blocks")
"""Fields of other programs' messages that hold a model's thinking."""
ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of the OpenAI chat API."""


class FunctionCall(Record):
    """Name of a tool and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Record):
    """Call of a tool in an assistant's message."""

    id: Annotated[str | None, OMIT_NONE] = None
    type: str = "function"
    function: FunctionCall


class ContentPart(Record):
    """Part of a message's content; a part that is not text keeps its own fields, as JSON."""

    type: str
    text: Annotated[str | None, OMIT_NONE] = None
    data: Annotated[dict[str, JsonValue], OMIT_EMPTY] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _keep_other_fields(cls, part: Any) -> Any:
        """Move fields of other types of parts, such as `image_url`, into `data`."""
        if not isinstance(part, Mapping) or set(part) <= {"type", "text"} or isinstance(part.get("data"), Mapping):
            return part
        own = {name: part[name] for name in ("type", "text") if name in part}
        return own | {"data": {name: value for name, value in part.items() if name not in own}}


def _known_role(role: str) -> str:
    if role not in ROLES:
        raise ValueError(f"{role!r} is not a role: use one of {', '.join(ROLES)}")
    return role


class ChatMessage(Record):
    """One message of a conversation, in the form of the OpenAI chat API."""

    role: Annotated[str, AfterValidator(_known_role)]
    content: str | tuple[ContentPart, ...] | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], OMIT_EMPTY] = ()
    tool_call_id: Annotated[str | None, OMIT_NONE] = None
    name: Annotated[str | None, OMIT_NONE] = None


def content_text(content: str | Sequence[ContentPart] | None) -> str:
    """Return the text of a message's content; each part that is not text becomes a mark such as `[image]`."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if part.text is not None else f"[{part.type}]" for part in content)
