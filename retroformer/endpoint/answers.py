"""Reads answers of models: how they ended, their text, calls of tools and results, without thinking.

Messages have parts in the forms of OpenAI's APIs (chat and responses), Anthropic, Gemini, Bedrock, Mistral, LangChain,
the AI SDK and OpenTelemetry's `gen_ai.*`. Thinking is neither advice nor an action.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from retroformer.files.text import storable
from retroformer.method.records import FinishReason

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
    answer = _ANALYSIS.sub("", text)
    answer = _CHANNEL.sub("", answer) if "<|channel|>" in text else answer
    answer = _OPEN_THINKING.sub("", _BLOCK.sub("", answer))
    return text if answer == text else answer.lstrip()


def strip_thinking_from_part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a part of a message's content without its thinking; None if it is nothing else.

    Its type may say so (`thinking`, `reasoning_text`), a mark (`thought: true`), or the names of its fields
    (`reasoningContent`), which may be in its `data`, as in `retroformer.method.records.ContentPart`.
    """
    data = part.get("data")
    inner = data if isinstance(data, Mapping) else {}
    if _THINKING_TYPE.search(str(part.get("type") or "")) or True in (part.get("thought"), inner.get("thought")):
        return None
    own = drop_thinking_fields(part) | ({"data": drop_thinking_fields(inner)} if inner else {})
    complete = len(own) == len(part) and (not inner or len(own["data"]) == len(inner))
    return own if complete or any(value for name, value in own.items() if name != "type") else None


def drop_thinking_fields(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a part or message that hold no thinking."""
    return {name: value for name, value in part.items() if not _THINKING_FIELD.match(name)}


_CALL = re.compile(r"tool_use$|_call$|^executable_code$")
"""Kinds of parts that are a call: `tool_use`, `toolUse`, `functionCall`, `tool-call`, `web_search_call`."""
_RESULT = re.compile(r"_call_output$|(?<!search)_result$|^(function|tool|tool_call)_response$")
"""Kinds of parts that are the result of a call: `tool_result`, `functionResponse`, `function_call_output`."""
_TEXTS = ("text", "citations_content", "search_result")
"""Kinds of parts whose content is a text, or parts that have some."""
_MEDIA = re.compile(r"image|audio|video|file|document|media|blob|uri|search|reference|citation|container|data|part")
"""Kinds of parts that hold no text and are shown as a mark, such as `[image]`."""
_UNNAMED_CALLS = ("tool_use", "server_tool_use", "tool_call", "function_call", "custom_tool_call")
_IDS = ("call_id", "toolUseId", "toolCallId", "tool_use_id", "tool_call_id", "id")
_NAMES = ("name", "toolName", "tool_name")
_ARGUMENTS = ("arguments", "args", "input", "action", "queries", "code")
_OUTPUTS = ("output", "content", "response", "result", "value", "text", "json")
"""Fields of calls and results in all APIs; a result may hold the others in turn."""
_OUTPUTS_OF_CALLS = ("output", "outputs", "errorText", "error")
"""Fields of a call that the provider has run: what it answered."""


class RequestedCall(NamedTuple):
    """Call as a model wrote it: the arguments are its text, an object from a server that parses them, or None."""

    name: str
    arguments: object
    id: str | None = None

    @property
    def text(self) -> str:
        """The arguments as text."""
        if isinstance(self.arguments, str):
            return self.arguments
        return "{}" if self.arguments is None else json.dumps(self.arguments, ensure_ascii=False, default=str)

    @property
    def written(self) -> str:
        """The call as text."""
        return f"{self.name}({self.text})"


class CallResult(NamedTuple):
    """What a tool answered."""

    text: str
    id: str | None


class MessageParts(NamedTuple):
    """Content of a message without thinking: parts with a `type` and perhaps a `text`, calls and their results."""

    content: list[dict[str, Any]]
    calls: list[RequestedCall]
    results: list[CallResult]
    unreadable: str
    """Place and kind of the first part without a text that is of no known kind; empty if there is none."""


def read_parts(parts: Iterable[Any]) -> MessageParts:
    """Read the parts of a message, whatever API they are of."""
    read = MessageParts([], [], [], "")
    for number, part in enumerate(parts):
        fields = strip_thinking_from_part({"type": "text", "text": part} if isinstance(part, str) else fields_of(part))
        if fields is None or fields.get("type") == "step-start":  # A mark of the AI SDK's pages.
            continue
        kind, inner = _kind_of(fields)
        text = _text_in(fields, kind, inner)
        if text is not None:
            read.content.append({"type": kind if kind == "refusal" else "text", "text": text})
        elif _RESULT.search(kind):
            output = _first(inner, _OUTPUTS)
            read.results.append(CallResult("" if output is None else _result_text(output), _identity(inner)))
        elif _CALL.search(kind) or "toolCallId" in inner:
            # The AI SDK's parts name the tool in their type: `tool-search`.
            name = kind if _CALL.search(kind) else str(fields.get("type")).removeprefix("tool-")
            read.calls.append(read_call(inner, name))
            if (output := _first(inner, _OUTPUTS_OF_CALLS)) is not None:
                read.results.append(CallResult(_result_text(output), _identity(inner)))
        else:
            fields.pop("text", None)
            read.content.append({**fields, "type": str(fields.get("type") or kind or "part")})
            if not _MEDIA.search(kind) and not read.unreadable:
                read = read._replace(unreadable=f"[{number}] ({kind or ', '.join(fields) or 'nothing'})")
    return read


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a message or part, which may be an object, as JSON and without nulls."""
    if not isinstance(value, Mapping):
        value = value.model_dump() if hasattr(value, "model_dump") else getattr(value, "__dict__", {})
    fields: dict[str, Any] = json.loads(json.dumps(dict(value), default=_plain))
    return {name: field for name, field in fields.items() if field is not None}


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return vars(value) if hasattr(value, "__dict__") else str(value)


def read_call(call: Any, kind: str = "") -> RequestedCall:
    """Read a call in any form, also as JSON; its name is empty if it has none."""
    if isinstance(call, str):
        with suppress(ValueError, RecursionError):
            call = json.loads(call)
    fields = fields_of(call)
    inner = next((fields[name] for name in ("function", "custom") if isinstance(fields.get(name), Mapping)), fields)
    named, arguments = _first(inner, _NAMES), _first(inner, _ARGUMENTS)
    if not isinstance(named, str):
        named = "" if kind in _UNNAMED_CALLS else kind.removesuffix("_call")
    if isinstance(arguments, str):
        arguments = storable(strip_thinking(arguments))
    return RequestedCall(storable(strip_thinking(named)), arguments, _identity(fields))


def _identity(fields: Mapping[str, Any]) -> str | None:
    value = _first(fields, _IDS)
    return None if value is None else storable(str(value))


def _kind_of(part: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of a part and its fields, which Gemini and Bedrock put under the kind: `{"toolUse": {...}}`."""
    if isinstance(part.get("type"), str):
        stored = part.get("data")  # As `retroformer.method.records.ContentPart` keeps other fields.
        return _snake(part["type"]), stored if isinstance(stored, Mapping) else part
    for name, inner in part.items():
        if isinstance(inner, Mapping):
            return _snake(name), inner
    return "", part


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_")


def _text_in(part: Mapping[str, Any], kind: str, inner: Mapping[str, Any]) -> str | None:
    """Return the text of a part, or of a refusal; None if it has none."""
    if _RESULT.search(kind) or _CALL.search(kind):
        return None
    for fields in (part, inner):
        text = fields.get("text", fields.get("content") if kind in _TEXTS else fields.get("refusal"))
        if isinstance(text, Mapping):
            # OpenAI's assistants write {"value": TEXT, "annotations": []}, Bedrock {"text": TEXT, "qualifiers": []}.
            text = text.get("value", text.get("text"))
        if isinstance(text := join_text(text), str):
            return text
    return None


def _first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    """Return the first of these fields that is not empty; None without one."""
    return next((fields[name] for name in names if fields.get(name) not in (None, "", {}, [])), None)


def _result_text(result: Any) -> str:
    """Return what a tool answered as text: the text of its parts, a mark for each that has none, else JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, list):
        return "\n".join(map(_result_text, result))
    if isinstance(result, Mapping):
        kind, inner = _kind_of(result)
        if (text := _text_in(result, kind, inner)) is not None:
            return text
        own = [name for name in result if name != "type"]
        if _MEDIA.search(kind) and ("type" in result or len(own) == 1):
            return f"[{kind}]"
        if len(own) == 1 and own[0] in _OUTPUTS:
            return _result_text(result[own[0]])
    return json.dumps(result, ensure_ascii=False, default=str)


_NATURAL_ENDS = ("stop", "end_turn", "stop_sequence", "eos", "eos_token", "complete", "completed", "done", "finished")
_CALLING_ENDS = ("tool_calls", "tool_call", "tool_use", "function_call")
_FAULTY_END = re.compile("error|fail|abort|cancel")
_REASONS = ("finish_reason", "stop_reason", "finish_details")
_MOST_TOKENS = 10_000_000
"""Largest plausible number of tokens of a prompt or a completion. A server that reports more does not count tokens."""
_ANSWERS = ("reasoning_content", "reasoning", "thinking_blocks", "tool_calls", "function_call", "refusal", "audio")
"""Fields of a message that may stand without a text: the model answered, but gave no answer in words."""


class ProviderAnswer(NamedTuple):
    """Answer of a provider over OpenAI's protocol, or one chunk of it."""

    message: Mapping[str, Any]
    """Message of the first choice, or what the chunk adds to it; empty if there is none."""
    usage: Mapping[str, Any]
    finish_reason: FinishReason | None
    """`length` for anything but a natural end: limits, filters, and reasons that are not known."""
    is_error: bool
    """True if the provider reports an error in the answer, the choice or the message, whatever the status was."""

    @property
    def text(self) -> str | None:
        """Text of the message, empty if the model gave none; None if this is not its answer.

        A model that was paid for and says why it ended has answered, if only with thinking.
        """
        if self.is_error:
            return None
        text = join_text(self.message.get("content"))
        billed = bool(self.usage) and self.finish_reason is not None
        if text in (None, []) and (billed or any(self.message.get(name) for name in _ANSWERS)):
            return ""
        return text if isinstance(text, str) else None


def read_response(response: Any, *, is_chunk: bool = False) -> ProviderAnswer:
    """Read an answer or a chunk, which may be any JSON; some providers add what they said so far to a chunk."""
    answer = response if isinstance(response, Mapping) else {}
    choice, usage = first_choice(answer), answer.get("usage")
    places = ("delta", "message") if is_chunk else ("message", "delta")
    message = next((choice[name] for name in places if isinstance(choice.get(name), Mapping)), None)
    if message is None:
        message = {"content": choice["text"]} if "text" in choice else {}
    usage = usage if isinstance(usage, Mapping) else {}
    stated = _first(choice, _REASONS)
    stated = stated.get("type") if isinstance(stated, Mapping) else stated
    reason = str(stated or "").rpartition(".")[2].lower()
    if not choice and answer.get("choices") == [] and usage.get("completion_tokens"):
        reason = "nothing"  # Some providers leave out the choice of a model that only thought.
    natural = reason in (*_NATURAL_ENDS, *_CALLING_ENDS)
    return ProviderAnswer(
        message=message,
        usage=usage,
        finish_reason=None if not reason else "stop" if natural else "length",
        is_error=bool(_FAULTY_END.search(reason)) or any(place.get("error") for place in (answer, choice, message)),
    )


def token_counts(usage: Mapping[str, object]) -> tuple[int | None, int | None]:
    """Return the tokens that a server reports of prompt and completion; None for a number that is not plausible."""
    prompt, completion = (
        count if type(count := usage.get(name)) is int and 0 <= count <= _MOST_TOKENS else None
        for name in ("prompt_tokens", "completion_tokens")
    )
    return prompt, completion


def first_choice(answer: Any) -> Mapping[str, Any]:
    """Return the choice of number 0 in an answer, which may hold anything; empty if there is none."""
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping) and choice.get("index") in (0, None):
            return choice
    return {}


def join_text(content: object) -> object:
    """Return the text of a list of parts, which some reasoning models answer, without thinking; else the content."""
    if not (isinstance(content, list) and content and all(isinstance(part, Mapping | str) for part in content)):
        return content
    return "".join(part.get("text", "") for part in read_parts(content).content if part["type"] == "text")
