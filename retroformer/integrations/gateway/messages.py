"""Messages of the chat API as the gateway keeps them: roles, texts and tool calls, without thinking, files and keys."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from retroformer.agents.messages import kept_messages
from retroformer.method.conversation import ROLES, ChatMessage, content_text


def json_object(data: bytes | bytearray) -> dict[str, Any]:
    """Return the object in a JSON text; {} if there is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def messages_of(messages: object) -> list[ChatMessage]:
    """Return the messages of a request as they are kept."""
    listed = messages if isinstance(messages, list) else []
    return [message_of(message) for message in listed if isinstance(message, Mapping)]


def message_of(message: Mapping[str, Any]) -> ChatMessage:
    """Return a message as it is kept, without what cannot be read; an unknown role is taken for the user's."""
    role = message.get("role")
    known = {**message, "role": role if role in ROLES else "user"}
    for readable in (known, {**known, "tool_calls": None}):
        with suppress(ValueError, RecursionError):
            (kept,) = kept_messages([readable])
            return kept.model_copy(update={"content": content_text(kept.content)})
    return ChatMessage(role=known["role"], content=json.dumps(message.get("content")))


def opening_of(messages: Iterable[ChatMessage]) -> str:
    """Return what the user said before the agent's first answer, which is the task as the agent reads it."""
    said = list[str]()
    for message in messages:
        if message.role == "assistant":
            break
        if message.role == "user":
            said.append(content_text(message.content))
    return "\n".join(said)


def with_advice(request: Mapping[str, Any], advice: str) -> dict[str, Any]:
    """Return a request whose system message ends with the advice; one is added in front if there is none."""
    messages = list(request["messages"])
    for place, message in enumerate(messages):
        if isinstance(message, Mapping) and message.get("role") in ("system", "developer"):
            messages[place] = {**message, "content": _appended(message.get("content"), advice)}
            break
    else:
        messages.insert(0, {"role": "system", "content": advice})
    return {**request, "messages": messages}


def _appended(content: object, advice: str) -> object:
    if isinstance(content, list):
        return [*content, {"type": "text", "text": advice}]
    return f"{content}\n\n{advice}" if content else advice
