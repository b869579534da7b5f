"""Reads messages of an agent: of the OpenAI chat API, of OpenTelemetry's `gen_ai.*`, or LangChain objects.

An assistant's tool call is an action `name(arguments)` and the tool's message its observation; the text beside the call
is the thought. An assistant's text without a call is an action, and the user's next message its observation. Everything
before the first assistant message is the agent's prompt, and thinking is left out.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from pydantic import ValidationError

from retroformer.endpoint.answers import strip_thinking, strip_thinking_from_part
from retroformer.files.text import storable
from retroformer.method.records import ROLES, ChatMessage, Step, content_text

_ROLES = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "model": "assistant", "function": "tool"}
"""Roles of other packages by those of the OpenAI API."""


def steps_of(messages: Sequence[Any]) -> tuple[Step, ...]:
    """Return the steps of the conversation. Raises ValueError, which names a message of another form."""
    kept = clean_messages(messages)
    steps = list[Step]()
    for number, message in enumerate(kept):
        if message.role != "assistant":
            continue
        said = content_text(message.content).strip()
        answers = list(takewhile(lambda later: later.role != "assistant", kept[number + 1 :]))
        results = [answer for answer in answers if answer.role == "tool"]
        for place, call in enumerate(message.tool_calls):
            # Some servers give calls no ids: their answers come in the order of the calls.
            of_call = [answer for answer in results if answer.tool_call_id == call.id]
            observation = _joined_content(results[place : place + 1] if call.id is None else of_call)
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
        ValueError: a message has another form; the sentence names its place.
    """
    kept = list[ChatMessage]()
    for number, message in enumerate(messages):
        place = f"{where}[{number}]"
        parts = message.get("parts") if isinstance(message, Mapping) and "content" not in message else None
        split = _split_parts(message.get("role"), parts, f"{place}.parts") if isinstance(parts, list) else [message]
        kept += [_clean_message(one, place) for one in split]
    return tuple(kept)


def readable_message(message: Mapping[str, Any]) -> ChatMessage:
    """Return a message of the chat API without what cannot be read, its content as text.

    An unknown role is taken for the user's.
    """
    known = {**message, "role": message["role"] if message.get("role") in ROLES else "user"}
    for readable in (known, {**known, "tool_calls": None}):
        with suppress(ValueError, RecursionError):
            (kept,) = clean_messages([readable])
            return kept.model_copy(update={"content": content_text(kept.content)})
    return ChatMessage(role=known["role"], content=json.dumps(message.get("content")))


def _split_parts(role: Any, parts: Sequence[Any], where: str) -> Iterator[dict[str, Any]]:
    """Yield a message of `gen_ai.*`, and then each result of a tool as a message of its own, as the OpenAI API does."""
    results, calls, content = list[dict[str, Any]](), list[Any](), list[dict[str, Any]]()
    for number, part in enumerate(parts):
        kind = _field(part, "type")
        needed = "content" if kind == "text" else "name" if kind == "tool_call" else "type"
        if not isinstance(part, Mapping) or not isinstance(part.get(needed), str):
            raise ValueError(f"{where}[{number}].{needed} is no text")
        if kind == "tool_call":
            calls.append(part)
        elif kind == "tool_call_response":
            # Earlier versions of the conventions call it `result`.
            result = part.get("response", part.get("result"))
            shown = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
            results.append({"role": "tool", "content": shown, "tool_call_id": part.get("id")})
        elif strip_thinking_from_part(part) is not None:
            content.append({"type": "text", "text": part["content"]} if kind == "text" else dict(part))
    if calls or content or not results:
        texts = [str(part.get("text")) for part in content if part["type"] == "text"]
        said = "\n".join(texts) if len(texts) == len(content) else content
        yield {"role": role, "content": said or None, "tool_calls": calls}
    yield from results


def _clean_message(message: Any, where: str) -> ChatMessage:
    role, content, called = (_field(message, name) for name in ("role", "content", "tool_calls"))
    if not role and not isinstance(message, Mapping):
        role = _field(message, "type")
    role = _ROLES.get(role, role) if isinstance(role, str) else ""
    if not role:
        raise ValueError(f"{where} has no role")
    if role not in ROLES:
        raise ValueError(f"{where}.role: {role!r} is not a role of the OpenAI API: use one of {', '.join(ROLES)}")
    if not (content is None or isinstance(content, Sequence)):
        raise ValueError(f"{where}.content is neither text nor a list of parts")
    if not (called is None or isinstance(called, Sequence)):
        raise ValueError(f"{where}.tool_calls is not a list")
    optional = {name: _field(message, name) for name in ("tool_call_id", "name")}
    kept = {name: storable(str(value)) for name, value in optional.items() if isinstance(value, str | int)}
    said = strip_thinking if role == "assistant" else str
    calls = [_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(called or ())]
    try:
        return ChatMessage.model_validate(
            {"role": role, "content": _clean_content(content, said), "tool_calls": calls, **kept}
        )
    except ValidationError as error:
        raise ValueError(f"{where}.content: {error.errors()[0]['msg']}") from None


def _clean_content(content: Any, said: Callable[[str], str]) -> Any:
    """Return text, or a list of parts without those that are thinking."""
    if content is None or isinstance(content, str):
        return content if content is None else storable(said(content))
    parts = list[dict[str, Any]]()
    for part in content:
        fields = strip_thinking_from_part({"type": "text", "text": part} if isinstance(part, str) else _json_of(part))
        if fields is None:
            continue
        fields["type"] = str(fields.get("type") or "part")
        if "text" in fields:
            fields["text"] = storable(said(str(fields["text"])))
        parts.append(fields)
    return parts


def _json_of(part: Any) -> dict[str, Any]:
    """Return the fields of a part, which may be an object, as JSON."""
    if not isinstance(part, Mapping):
        part = part.model_dump() if hasattr(part, "model_dump") else getattr(part, "__dict__", {})
    read: dict[str, Any] = json.loads(json.dumps(dict(part), default=str))
    return {name: value for name, value in read.items() if value is not None}


def final_text(steps: Sequence[Step]) -> str:
    """Return the agent's last text, which is its answer; empty if there are no steps."""
    return steps[-1].action if steps else ""


def _call(call: Any, where: str) -> dict[str, Any]:
    """Return a tool call in the form of the OpenAI API."""
    if isinstance(call, str):
        with suppress(ValueError, RecursionError):
            call = json.loads(call)  # verifiers saves calls as texts.
    function = _field(call, "function") or _field(call, "custom") or call
    # LangChain has `args` as a mapping, the OpenAI API `arguments` as JSON, and the `input` of a custom tool as text.
    given = (_field(function, name) for name in ("arguments", "args", "input"))
    arguments: Any = next((value for value in given if value), {})
    name, identity = _field(function, "name"), _field(call, "id")
    if not isinstance(name, str):
        raise ValueError(f"{where} has no name")
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    named = {"name": storable(strip_thinking(name)), "arguments": storable(strip_thinking(shown))}
    return {"id": None if identity is None else storable(str(identity)), "function": named}


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
