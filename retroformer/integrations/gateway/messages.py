"""Messages of the chat API as the gateway keeps them: roles, texts and tool calls, without thinking, files and keys."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from retroformer.endpoint.thinking import part_without_thinking, without_thinking

Turn = dict[str, Any]
"""A message with `role` and `content`, and `tool_calls` or `tool_call_id` where it has them."""

_ROLES = {"system", "developer", "user", "assistant", "tool"}


def turns_of(messages: object) -> list[Turn]:
    """Return the messages of a request in the form that is kept; an unknown role is taken for the user's."""
    return [turn_of(message) for message in messages if isinstance(message, Mapping)] if _is_list(messages) else []


def turn_of(message: Mapping[str, Any]) -> Turn:
    """Return a message in the form that is kept."""
    role = message.get("role")
    turn: Turn = {"role": role if role in _ROLES else "user", "content": _text_of(message.get("content"))}
    if turn["role"] == "assistant":
        turn["content"] = without_thinking(turn["content"])
        calls = message.get("tool_calls")
        if kept := [_call_of(call) for call in calls if isinstance(call, Mapping)] if _is_list(calls) else []:
            turn["tool_calls"] = kept
    if turn["role"] == "tool":
        turn["tool_call_id"] = _word(message.get("tool_call_id"))
    return turn


def opening_of(turns: Iterable[Turn]) -> str:
    """Return what the user said before the agent's first answer, which is the task as the agent reads it."""
    said = list[str]()
    for turn in turns:
        if turn["role"] == "assistant":
            break
        if turn["role"] == "user":
            said.append(turn["content"])
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


def _text_of(content: object) -> str:
    """Return the text of a content without thinking, with a mark for every part that is not text, such as an image."""
    if isinstance(content, str):
        return content
    if not _is_list(content):
        return "" if content is None else json.dumps(content)
    parts = list[str]()
    for part in content:
        if isinstance(part, Mapping) and part_without_thinking(part) is None:
            continue
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else ("text", part)
        parts.append(text if isinstance(text, str) else f"[{_word(kind) or 'part'}]")
    return "\n".join(parts)


def _call_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool call with name and arguments as text; the text of a custom tool counts as its arguments."""
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments", function.get("input"))
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    name = without_thinking(_word(function.get("name"))) or "tool"
    kept = {"type": "function", "function": {"name": name, "arguments": without_thinking(shown)}}
    return kept | ({"id": call["id"]} if isinstance(call.get("id"), str) else {})


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
