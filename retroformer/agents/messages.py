"""Reads messages of an agent, in the form of any API that `retroformer.endpoint.answers` reads, and LangChain's.

An assistant's tool call is an action `name(arguments)` and the tool's message its observation; the text beside the call
is the thought. An assistant's text without a call is an action, and the user's next message its observation. Everything
before the first assistant message is the agent's prompt, and thinking is left out.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any

from pydantic import ValidationError

from retroformer.endpoint.answers import (
    CallResult,
    MessageParts,
    drop_thinking_fields,
    fields_of,
    read_call,
    read_parts,
    strip_thinking,
)
from retroformer.files.text import storable
from retroformer.method.records import ROLES, ChatMessage, Step, content_text

_ROLES = {"human": "user", "ai": "assistant", "model": "assistant", "function": "tool"}
"""Roles of the OpenAI API by those of other packages."""
_TEXT_FIELDS = ("text", "message", "value", "output")
"""Fields, besides lists, in which a message of another package may say something."""


def steps_of(messages: Sequence[ChatMessage]) -> tuple[Step, ...]:
    """Return the steps of a conversation, as `clean_messages` returns it."""
    steps = list[Step]()
    for number, message in enumerate(messages):
        if message.role != "assistant":
            continue
        said = content_text(message.content).strip()
        answers = list(takewhile(lambda later: later.role != "assistant", islice(messages, number + 1, None)))
        results, by_id = list[ChatMessage](), defaultdict[str | None, list[ChatMessage]](list)
        for answer in answers:
            if answer.role == "tool":
                results.append(answer)
                by_id[answer.tool_call_id].append(answer)
        for place, call in enumerate(message.tool_calls):
            # Some servers give calls no ids: their answers come in the order of the calls.
            observation = _joined_content(results[place : place + 1] if call.id is None else by_id[call.id])
            action = f"{call.function.name}({call.function.arguments})"
            steps.append(Step(thought="" if place else said, action=action, observation=observation))
        if not message.tool_calls:
            steps.append(
                Step(action=said, observation=_joined_content(answer for answer in answers if answer.role == "user"))
            )
    return tuple(steps)


def _joined_content(messages: Iterable[ChatMessage]) -> str:
    return "\n".join(content_text(message.content) for message in messages)


def clean_messages(messages: Sequence[Any], where: str = "messages") -> tuple[ChatMessage, ...]:
    """Return the messages as they are stored: without thinking, and without fields of other packages.

    Args:
        messages: the messages in any of the forms.
        where: what an error calls them.

    Raises:
        ValueError: a message has another form, or nothing in it can be read; the sentence names its place.
    """
    kept = list[ChatMessage]()
    for number, message in enumerate(messages):
        fields, place = _fields(message), f"{where}[{number}]"
        role = _role(fields, place)
        if role:
            for turn in _turns(role, fields):
                kept += _message(role, turn, place)
            continue
        for item in _item(fields, place):
            if item.role == "assistant" and kept and kept[-1].role == "assistant":
                # Each call of an answer is an item of its own.
                kept[-1] = kept[-1].model_copy(update={"tool_calls": (*kept[-1].tool_calls, *item.tool_calls)})
            else:
                kept.append(item)
    return tuple(kept)


def readable_messages(messages: Iterable[Any]) -> list[ChatMessage]:
    """Return messages of the chat API with their content as text; what cannot be read of one is shown as JSON."""
    kept = list[ChatMessage]()
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        try:
            read = clean_messages([message])
        except (ValueError, TypeError, RecursionError):
            read = (_unreadable(message),)
        kept += (clean.model_copy(update={"content": content_text(clean.content)}) for clean in read)
    return kept


def _unreadable(message: Mapping[str, Any]) -> ChatMessage:
    """Return a message that cannot be read, with JSON as its content; an unknown role is the user's."""
    role, content = message.get("role"), message.get("content")
    with suppress(ValueError, TypeError, RecursionError):
        shown = content if isinstance(content, str) else json.dumps(message if content is None else content)
        return ChatMessage(role=role if isinstance(role, str) and role in ROLES else "user", content=storable(shown))
    return ChatMessage(role="user", content="")


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a message, without what LangChain wraps around them; a pair is role and content."""
    if isinstance(message, list | tuple):
        return {"role": message[0], "content": message[1]} if len(message) == 2 else {}
    fields = dict(message) if isinstance(message, Mapping) else fields_of(message)
    if isinstance(fields.get("kwargs"), Mapping) and isinstance(fields.get("id"), list):
        return {"type": next(reversed(fields["id"]), None), **fields["kwargs"]}
    if isinstance(fields.get("data"), Mapping) and "content" in fields["data"]:
        return {"type": fields.get("type"), **fields["data"]}
    return fields


def _role(fields: Mapping[str, Any], where: str) -> str:
    """Return the role of a message, which LangChain calls its type; empty for an item of OpenAI's responses."""
    role, kind = fields.get("role"), fields.get("type")
    for name in (role, kind):
        # LangChain also writes the name of a class, such as `HumanMessage`.
        role_name = name.lower().removesuffix("chunk").removesuffix("message") if isinstance(name, str) else ""
        if (role_name := _ROLES.get(role_name, role_name)) in ROLES:
            return role_name
        if name is role and role_name:
            raise ValueError(f"{where}.role: {role!r} is not a role of the OpenAI API: use one of {', '.join(ROLES)}")
    if not isinstance(kind, str):
        raise ValueError(f"{where} has no role")
    return ""


def _item(fields: Mapping[str, Any], where: str) -> list[ChatMessage]:
    """Return the message of an item of OpenAI's responses, which is a call or a result; thinking gives none."""
    read = read_parts([fields])
    if read.content:
        raise ValueError(f"{where} is of the type {fields['type']!r}, which is no message that can be read")
    calls = {"role": "assistant", "tool_calls": _calls({}, read, where)} if read.calls else None
    return [*([ChatMessage.model_validate(calls)] if calls else []), *map(_result, read.results)]


def _turns(role: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split an answer behind results of tools that the provider ran: what it says and calls next is another turn."""
    name = _parts_in(fields)
    parts = fields.get(name)
    if role == "assistant" and isinstance(parts, list) and not fields.get("tool_calls"):
        begun, is_answered = 0, False
        for number, part in enumerate(parts):
            read = read_parts([part])
            if is_answered and (read.calls or any("text" in content for content in read.content)):
                yield {**fields, name: parts[begun:number]}
                begun, is_answered = number, False
            is_answered |= bool(read.results)
        fields = {**fields, name: parts[begun:]}
    yield fields


def _parts_in(fields: Mapping[str, Any]) -> str:
    return "parts" if fields.get("content") is None and "parts" in fields else "content"


def _message(role: str, fields: Mapping[str, Any], where: str) -> list[ChatMessage]:
    """Return a message, and each result of a tool in it as a message of its own, as the OpenAI API has them."""
    name = _parts_in(fields)
    value = fields.get(name)
    if not (value is None or isinstance(value, Sequence)):
        raise ValueError(f"{where}.{name} is neither text nor a list of parts")
    read = read_parts(() if value is None or isinstance(value, str) else value)
    calls, results = _calls(fields, read, where), list(map(_result, read.results))
    if read.unreadable and not (calls or results or any("text" in part for part in read.content)):
        raise ValueError(f"{where}.{name}{read.unreadable} holds no text that can be read")
    content: Any = value if isinstance(value, str) else read.content or fields.get("refusal")
    if name == "parts" and all("text" in part for part in read.content):
        content = "\n".join(part["text"] for part in read.content) or None
    if results and not (content or calls):
        return results
    for other, value in () if content or calls else drop_thinking_fields(fields).items():
        if other != name and value and (isinstance(value, list) or other in _TEXT_FIELDS):
            raise ValueError(f"{where}.{other} cannot be read: give the message its content")
    kept = {"role": role, "content": _cleaned(content, role), "tool_calls": calls}
    given_names = {name: fields.get(name) for name in ("tool_call_id", "name")}
    named = {name: storable(str(value)) for name, value in given_names.items() if isinstance(value, str | int)}
    try:
        own = ChatMessage.model_validate({**kept, **named})
    except ValidationError as error:
        raise ValueError(f"{where}.content: {error.errors()[0]['msg']}") from None
    return [own, *results] if role == "assistant" else [*results, own]


def _cleaned(content: Any, role: str) -> Any:
    """Return text or parts that a store holds, without the thinking of a model."""
    said: Callable[[str], str] = strip_thinking if role == "assistant" else str
    if isinstance(content, list):
        return [{**part, "text": storable(said(part["text"]))} if "text" in part else part for part in content]
    return storable(said(content)) if isinstance(content, str) else None


def _result(result: CallResult) -> ChatMessage:
    return ChatMessage(role="tool", content=storable(result.text), tool_call_id=result.id)


def _calls(fields: Mapping[str, Any], read: MessageParts, where: str) -> list[dict[str, Any]]:
    """Return the calls of a message in the form of the OpenAI API."""
    listed = fields.get("tool_calls") or fields.get("invalid_tool_calls") or ()
    if not isinstance(listed, Sequence):
        raise ValueError(f"{where}.tool_calls is not a list")
    if not listed and fields.get("function_call"):
        listed = [fields["function_call"]]
    # LangChain lists calls that Anthropic's content has, too.
    calls = list(map(read_call, listed)) or read.calls
    for number, call in enumerate(calls):
        if not call.name:
            raise ValueError(f"{where}.tool_calls[{number}] has no name")
    return [{"id": call.id, "function": {"name": call.name, "arguments": call.text}} for call in calls]
