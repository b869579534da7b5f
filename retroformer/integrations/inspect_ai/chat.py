"""Messages of Inspect in the form of cases."""

import json
from collections.abc import Sequence

from inspect_ai.model import ChatMessage as InspectMessage
from inspect_ai.model import ChatMessageAssistant, ChatMessageTool, Content

from retroformer.cases.case import ChatMessage, ContentPart, FunctionCall, ToolCall
from retroformer.conversation import content_text


def case_messages(messages: Sequence[InspectMessage]) -> tuple[ChatMessage, ...]:
    """Return a conversation without thinking. The error of a tool is part of its result."""
    return tuple(_message(message) for message in messages)


def text_of_content(content: str | list[Content]) -> str:
    """Return the text of a message, with a mark for every part that is not text."""
    return content if isinstance(content, str) else content_text(_parts(content))


def _message(message: InspectMessage) -> ChatMessage:
    content = message.content
    calls = (message.tool_calls or []) if isinstance(message, ChatMessageAssistant) else []
    said: str | tuple[ContentPart, ...] | None = content if isinstance(content, str) else _parts(content)
    if isinstance(message, ChatMessageTool) and message.error is not None:
        said = "\n".join(text for text in (text_of_content(content), f"Error: {message.error.message}") if text)
    return ChatMessage(
        role=message.role,
        content=said or (None if calls else ""),
        tool_calls=tuple(
            ToolCall(
                id=call.id,
                function=FunctionCall(name=call.function, arguments=json.dumps(call.arguments, ensure_ascii=False)),
            )
            for call in calls
        ),
        tool_call_id=message.tool_call_id if isinstance(message, ChatMessageTool) else None,
    )


def _parts(content: list[Content]) -> tuple[ContentPart, ...]:
    return tuple(
        ContentPart(type="text", text=part.text)
        if part.type == "text"
        else ContentPart(type=part.type, data=part.model_dump(mode="json", exclude={"type", "internal"}))
        for part in content
        if part.type != "reasoning"
    )
