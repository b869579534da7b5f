"""Native tool calling in the form of the OpenAI chat API: tools, a conversation of calls, and a model's answer."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from retroformer.endpoint.thinking import joined_text, without_thinking
from retroformer.files.characters import storable
from retroformer.records import Message, Step, Tool
from retroformer.tools import ToolCall, call_of


class RequestedCall(NamedTuple):
    """Call as a model wrote it: the arguments are its text, or an object from a server that parses them itself."""

    name: str
    arguments: object

    @property
    def written(self) -> str:
        """The call as text."""
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)
        return f"{self.name}({text})"


class ToolAnswer(NamedTuple):
    """Answer of a model without its thinking: text, calls or both."""

    text: str
    calls: tuple[RequestedCall, ...]


def tools_of_request(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Return the field `tools` of a request."""
    return [{"type": "function", "function": tool.model_dump(exclude={"form"})} for tool in tools]


def conversation(beginning: Sequence[Message], steps: Sequence[Step], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Return an attempt so far as messages: each step is an assistant's turn and the answer to it.

    Several calls of one answer become turns of their own, as a step does not say which answer it belongs to. An action
    that is no readable call is an assistant's text, since servers refuse a call whose arguments are not JSON.
    """
    turns: list[dict[str, Any]] = [message.model_dump() for message in beginning]
    for number, step in enumerate(steps):
        call = call_of(step.action, tools)
        turns += _text_turns(step) if call is None else _call_turns(step, call, f"call_{number}")
    return turns


def read_answer(message: dict[str, Any]) -> ToolAnswer:
    """Return text and calls of an assistant's message, whatever else is in it."""
    content, calls = joined_text(message.get("content")), message.get("tool_calls")
    text = content if isinstance(content, str) else ""
    requested = [_requested(call) for call in calls] if isinstance(calls, list) else []
    return ToolAnswer(storable(without_thinking(text)).strip(), tuple(requested))


def _requested(call: object) -> RequestedCall:
    """Return name and arguments of a call; the name is empty if there is none."""
    function = call.get("function") if isinstance(call, dict) else None
    fields = function if isinstance(function, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments")
    if isinstance(arguments, str):
        arguments = storable(arguments)
    return RequestedCall(storable(name) if isinstance(name, str) else "", arguments)


def _call_turns(step: Step, call: ToolCall, identity: str) -> list[dict[str, Any]]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    requested = {"id": identity, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": step.thought, "tool_calls": [requested]},
        {"role": "tool", "tool_call_id": identity, "content": step.observation},
    ]


def _text_turns(step: Step) -> list[dict[str, Any]]:
    said = "\n".join(text for text in (step.thought, step.action) if text)
    return [{"role": "assistant", "content": said}, {"role": "user", "content": step.observation}]
