"""Separates the answer of a reasoning model from its thinking, which is neither advice nor an action."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from retroformer.environments.tools import ToolAction, call_of
from retroformer.files.text import storable
from retroformer.method.records import Message, Step, Tool

_TAGS = r"think|thinking|thought|reasoning|antthinking|seed:think"
_MARK_PAIRS = (
    (r"\[THINK\]", r"\[/THINK\]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Command A
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),  # Sky-T1
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    (r"<\|channel>thought\b", r"<channel\|>"),  # Gemma 4
)
"""Marks of thinking that are not tags of one name: opening and closing."""

_BLOCK = re.compile(
    "|".join(
        [
            rf"<(?P<tag>{_TAGS})(?:\s[^<>]*[^<>/])?>.*?(?:</(?P=tag)\s*>|\Z)",
            *(rf"{begin}.*?(?:{end}|\Z)" for begin, end in _MARK_PAIRS),
        ],
    ),
    re.DOTALL | re.IGNORECASE,
)
"""Thinking between its marks; without an end if the model was cut off."""
_OPEN_THINKING = re.compile(
    rf"\A.*(?:</(?:{_TAGS})>|{'|'.join(end for _, end in _MARK_PAIRS)})"
    r"""(?:[ \t]*(?:\n|\Z)|(?=[^\s,.;:!?)\]}'"`»]))""",
    re.DOTALL | re.IGNORECASE,
)
"""Thinking whose opening mark is the end of the prompt, as the chat template wrote it, or is inside other thinking.

Its closing mark ends a line or touches the answer. One that a text only mentions is followed by a blank or punctuation.
"""
_ANALYSIS = re.compile(
    r"(?:<\|start\|>assistant)?<\|channel\|>analysis\b.*?(?:<\|(?:end|return|call)\|>|(?=<\|(?:start|channel)\|>)|\Z)"
    r"|\Aanalysis(?=[A-Z]).*?(?:assistantfinal|\Z)",
    re.DOTALL,
)
"""Thinking in the format of gpt-oss; the second form is what is left where special tokens are skipped."""
_CHANNEL = re.compile(
    r"(?:<\|start\|>assistant)?(?:<\|channel\|>(?:final|commentary)\b[^<]*)(?:<\|constrain\|>\w*)?<\|message\|>"
    r"|<\|(?:end|return|call)\|>"
)
"""Marks of gpt-oss around what is not thinking."""

_THINKING_TYPE = re.compile("think|thought|reasoning", re.IGNORECASE)
"""In the type of a part: `thinking`, `redacted_thinking`, `reasoning_text`."""
_THINKING_FIELD = re.compile("thinking|thought|reasoning", re.IGNORECASE)
"""At the beginning of the name of a field: `thinking_blocks`, `thoughtSignature`, `reasoning_content`."""


def strip_thinking(text: str) -> str:
    """Return the text without the thinking in it; all of it is thinking if it was cut off before an answer.

    A text without marks is returned unchanged.
    """
    if not any(mark in text for mark in "<[◁") and not text.startswith("analysis"):
        return text  # Millions of texts are stored, and hardly any has a mark.
    answer = _OPEN_THINKING.sub("", _BLOCK.sub("", _strip_analysis(text)))
    return text if answer == text else answer.lstrip()


def _strip_analysis(text: str) -> str:
    answer = _ANALYSIS.sub("", text)
    return _CHANNEL.sub("", answer) if "<|channel|>" in text else answer


def strip_thinking_from_part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a part of a message's content without its thinking; None if it is nothing else.

    Its type may say so (`thinking`, `reasoning_text`), a mark (`thought: true`), or the names of its fields
    (`reasoningContent`), which may be in its `data`, as in `retroformer.method.records.ContentPart`.
    """
    data = part.get("data")
    inner = data if isinstance(data, Mapping) else {}
    if _THINKING_TYPE.search(str(part.get("type") or "")) or True in (part.get("thought"), inner.get("thought")):
        return None
    own = _drop_thinking_fields(part) | ({"data": _drop_thinking_fields(inner)} if inner else {})
    complete = len(own) == len(part) and (not inner or len(own["data"]) == len(inner))
    return own if complete or any(value for name, value in own.items() if name != "type") else None


def join_text(content: object) -> object:
    """Return the text of a list of parts, which some reasoning models answer, without thinking; else the content."""
    if not (isinstance(content, list) and content and all(isinstance(part, Mapping) for part in content)):
        return content
    parts = map(strip_thinking_from_part, content)
    return "".join(text for part in parts if part is not None and isinstance(text := part.get("text"), str))


def _drop_thinking_fields(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if not _THINKING_FIELD.match(name)}


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
    content, calls = join_text(message.get("content")), message.get("tool_calls")
    text = content if isinstance(content, str) else ""
    requested = [_read_call(call) for call in calls] if isinstance(calls, list) else []
    return ToolAnswer(storable(strip_thinking(text)).strip(), tuple(requested))


def _read_call(call: object) -> RequestedCall:
    """Return name and arguments of a call; the name is empty if there is none."""
    function = call.get("function") if isinstance(call, dict) else None
    fields = function if isinstance(function, dict) else {}
    name, arguments = fields.get("name"), fields.get("arguments")
    if isinstance(arguments, str):
        arguments = storable(arguments)
    return RequestedCall(storable(name) if isinstance(name, str) else "", arguments)


def _call_turns(step: Step, call: ToolAction, identity: str) -> list[dict[str, Any]]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    requested = {"id": identity, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": step.thought, "tool_calls": [requested]},
        {"role": "tool", "tool_call_id": identity, "content": step.observation},
    ]


def _text_turns(step: Step) -> list[dict[str, Any]]:
    said = "\n".join(text for text in (step.thought, step.action) if text)
    return [{"role": "assistant", "content": said}, {"role": "user", "content": step.observation}]
