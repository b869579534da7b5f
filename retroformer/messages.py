"""Messages of an agent, in the form of the OpenAI chat API or as LangChain objects: their steps, and what is kept.

An assistant's tool call is an action `name(arguments)` and the tool's message its observation; the text beside the call
is the thought. An assistant's text without a call is an action, and the user's next message its observation. Everything
before the first assistant message is the agent's prompt, and thinking is left out.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from retroformer.conversation import ROLES, ChatMessage
from retroformer.endpoint.answers import part_without_thinking, without_thinking
from retroformer.files.text import storable
from retroformer.records import Step

_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "model": "assistant", "function": "tool"}
"""Roles of other packages by those of the OpenAI API."""
_FIELDS = ("role", "content", "tool_calls", "tool_call_id")


def steps_of(messages: Sequence[Any]) -> tuple[Step, ...]:
    """Return the steps of the conversation.

    Raises:
        ValueError: a message has another form; the sentence names its place.
    """
    turns = [_turn(message, number) for number, message in enumerate(messages)]
    steps = list[Step]()
    for number, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        answers = _until_next_assistant(turns[number + 1 :])
        said = without_thinking(_text(turn["content"])).strip()
        calls = turn["tool_calls"] or ()
        for place, call in enumerate(calls):
            name, identity = _call(call, f"messages[{number}].tool_calls[{place}]")
            replies = [answer for answer in answers if answer["role"] == "tool"]
            # Some servers give calls no ids: their answers come in the order of the calls.
            replies = (
                replies[place : place + 1]
                if identity is None
                else [reply for reply in replies if reply["tool_call_id"] == identity]
            )
            observation = "\n".join(_text(reply["content"]) for reply in replies)
            steps.append(Step(thought="" if place else said, action=name, observation=observation))
        if not calls:
            observation = "\n".join(_text(answer["content"]) for answer in answers if answer["role"] == "user")
            steps.append(Step(action=said, observation=observation))
    return tuple(steps)


def kept_messages(messages: Sequence[Any]) -> tuple[ChatMessage, ...]:
    """Return the messages as they are stored: without thinking, and without fields of other packages.

    Raises:
        ValueError: a message has another form; the sentence names its place.
    """
    return tuple(_kept(message, number) for number, message in enumerate(messages))


def _kept(message: Any, number: int) -> ChatMessage:
    turn = _turn(message, number)
    said = without_thinking if turn["role"] == "assistant" else str
    calls = []
    for place, call in enumerate(turn["tool_calls"] or ()):
        name, arguments, identity = _called(call, f"messages[{number}].tool_calls[{place}]")
        function = {"name": storable(without_thinking(name)), "arguments": storable(without_thinking(arguments))}
        calls.append({"id": identity if identity is None else storable(str(identity)), "function": function})
    optional = {name: _field(message, name) for name in ("tool_call_id", "name")}
    named = {name: storable(value) for name, value in optional.items() if isinstance(value, str)}
    content = _kept_content(turn["content"], said)
    try:
        return ChatMessage.model_validate({"role": turn["role"], "content": content, "tool_calls": calls} | named)
    except ValidationError as error:
        raise ValueError(f"messages[{number}].content: {error.errors()[0]['msg']}") from None


def _kept_content(content: Any, said: Callable[[str], str]) -> Any:
    """Return text, or a list of parts without those that are thinking."""
    if content is None or isinstance(content, str):
        return content if content is None else storable(said(content))
    parts = list[dict[str, Any]]()
    for part in content:
        fields = part_without_thinking({"type": "text", "text": part} if isinstance(part, str) else _json_of(part))
        if fields is None:
            continue
        fields["type"] = str(fields.get("type") or "part")
        if "text" in fields:
            fields["text"] = storable(said(str(fields["text"])))
        parts.append(fields)
    return parts


def _json_of(part: Any) -> dict[str, Any]:
    """Return the fields of a part, which may be a pydantic object, as JSON."""
    read: dict[str, Any] = json.loads(json.dumps(_described(part), default=str))
    return {name: value for name, value in read.items() if value is not None}


def _described(part: Any) -> dict[str, Any]:
    """Return the fields of a part, which may be an object."""
    if isinstance(part, Mapping):
        return dict(part)
    return dict(part.model_dump() if hasattr(part, "model_dump") else getattr(part, "__dict__", {}))


def standard_role(role: str) -> str:
    """Return a role in the words of the OpenAI API. Raises ValueError if it has no such role."""
    standard = _ROLES.get(role, role)
    if standard not in ROLES:
        raise ValueError(f"{role!r} is not a role of the OpenAI API: use one of {', '.join(ROLES)}")
    return standard


def final_text(steps: Sequence[Step]) -> str:
    """Return the agent's last text, which is its answer; empty if there are no steps."""
    return steps[-1].action if steps else ""


def _turn(message: Any, number: int) -> dict[str, Any]:
    """Return role, content, tool calls and tool call id of a message."""
    if not isinstance(message, Mapping):
        role = str(getattr(message, "role", None) or getattr(message, "type", None) or "")
        message = {"role": role} | {name: getattr(message, name, None) for name in _FIELDS if name != "role"}
    turn = {name: message.get(name) for name in _FIELDS}
    if not isinstance(turn["role"], str) or not turn["role"]:
        raise ValueError(f"messages[{number}] has no role")
    try:
        turn["role"] = standard_role(turn["role"])
    except ValueError as error:
        raise ValueError(f"messages[{number}].role: {error}") from None
    if not (turn["content"] is None or isinstance(turn["content"], Sequence)):
        raise ValueError(f"messages[{number}].content is neither text nor a list of parts")
    if not (turn["tool_calls"] is None or isinstance(turn["tool_calls"], Sequence)):
        raise ValueError(f"messages[{number}].tool_calls is not a list")
    return turn


def _until_next_assistant(turns: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    answers = list[dict[str, Any]]()
    for turn in turns:
        if turn["role"] == "assistant":
            break
        answers.append(turn)
    return answers


def _call(call: Any, where: str) -> tuple[str, str | None]:
    """Return a tool call as `name(arguments)`, and its id."""
    name, arguments, identity = _called(call, where)
    return f"{name}({arguments})", identity


def _called(call: Any, where: str) -> tuple[str, str, str | None]:
    """Return name and arguments, as JSON, of a tool call, and its id."""
    if not isinstance(call, Mapping):
        call = {name: getattr(call, name, None) for name in ("id", "function")}
    function = call.get("function") or call.get("custom") or call
    if not isinstance(function, Mapping):
        function = {name: getattr(function, name, None) for name in ("name", "arguments")}
    # LangChain has `args` as a mapping, the OpenAI API `arguments` as JSON, and the `input` of a custom tool as text.
    arguments = next((function[key] for key in ("arguments", "args", "input") if key in function), None)
    name = function.get("name")
    if not isinstance(name, str):
        raise ValueError(f"{where} has no name")
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False, default=str)
    return name, shown, call.get("id")


def _text(content: Any) -> str:
    """Return the text of a message's content, with a mark for every part that is not text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = list[str]()
    for part in content:
        if isinstance(part, str):
            parts.append(part)
            continue
        kind, text = (_field(part, name) for name in ("type", "text"))
        if part_without_thinking(_described(part)) is None:
            continue
        parts.append(str(text) if kind == "text" and text is not None else f"[{kind or 'part'}]")
    return "\n".join(parts)


def _field(part: Any, name: str) -> Any:
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
