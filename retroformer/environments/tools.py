"""Tool calls as actions: how a call becomes an action in the grammar of its environment, and an action a call.

The action of a call is the tool's `form` with the arguments in it, such as `Search[Paris]`, or else the name with the
arguments as a JSON object: `search({"query": "Paris"})`.
"""

import json
import re
from collections.abc import Iterable
from functools import cache
from itertools import zip_longest
from typing import Any, NamedTuple

from retroformer.files.text import storable
from retroformer.method.records import Tool

_FIELD = re.compile(r"\{(\w+)\}")
_CALL = re.compile(r"\s*([\w.:/-]+)\((.*)\)\s*\Z", re.DOTALL)


class ToolAction(NamedTuple):
    """Call of a tool with its arguments."""

    name: str
    arguments: dict[str, Any]


class ToolFault(ValueError):
    """Fault of a call, in one sentence for the agent that made it."""


def read_arguments(name: str, text: object) -> dict[str, Any]:
    """Return the arguments of a call, which come as JSON text or as an object. Raises ToolFault."""
    if isinstance(text, dict):
        return text
    if text is None or (isinstance(text, str) and not text.strip()):
        return {}
    try:
        arguments = json.loads(text, parse_constant=_refuse_constant) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise ToolFault(f"The arguments of {name} are not JSON ({error}): write one object.") from None
    if not isinstance(arguments, dict):
        raise ToolFault(f"The arguments of {name} are not a JSON object: write one, such as {{}}.")
    return arguments


def action_of(call: ToolAction, tools: Iterable[Tool]) -> str:
    """Return the action of a call. Raises ToolFault if there is no such tool, or its form lacks an argument."""
    by_name = {tool.name: tool for tool in tools}
    if call.name not in by_name:
        raise ToolFault(f"There is no tool {call.name!r}: call one of {', '.join(by_name) or 'none'}.")
    form = by_name[call.name].form
    if missing := [field for field in _FIELD.findall(form) if field not in call.arguments]:
        raise ToolFault(f"The call of {call.name} lacks {' and '.join(missing)}: give all of its arguments.")
    if form:
        return storable(_FIELD.sub(lambda field: _plain(call.arguments[field[1]]), form))
    return storable(f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})")


def call_of(action: str, tools: Iterable[Tool]) -> ToolAction | None:
    """Return the call that an action stands for; None if it is no call of one of these tools."""
    for tool in tools:
        if tool.form and (match := _form(tool.form).fullmatch(action)):
            return ToolAction(tool.name, dict(match.groupdict()))
    call = _CALL.match(action)
    if call is None or call[1] not in {tool.name for tool in tools if not tool.form}:
        return None
    try:
        return ToolAction(call[1], read_arguments(call[1], call[2]))
    except ToolFault:
        return None


@cache
def _form(form: str) -> re.Pattern[str]:
    """Return the pattern of the actions of a form; an argument that comes twice must be the same."""
    texts, pattern = _FIELD.split(form), ""
    for text, name in zip_longest(texts[::2], texts[1::2]):
        pattern += re.escape(text)
        if name is not None:
            pattern += f"(?P={name})" if f"(?P<{name}>" in pattern else f"(?P<{name}>.*)"
    return re.compile(pattern, re.DOTALL)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
