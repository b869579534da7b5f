"""Parses a case from JSON; what is wrong with it becomes one sentence with the field."""

import json
import re
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from retroformer.cases.case import Case, CaseAdvice, CaseAttempt, CaseTask
from retroformer.conversation import THINKING, ChatMessage, ContentPart, FunctionCall, ToolCall
from retroformer.errors import DamagedFile
from retroformer.files.bounded import MIB
from retroformer.records import Step, Usage

CASE_BYTES = 16 * MIB
"""Largest case, as JSON."""
_MODELS = (Case, CaseTask, CaseAttempt, CaseAdvice, Step, ChatMessage, ContentPart, ToolCall, FunctionCall, Usage)
_NAMES = sorted({name for model in _MODELS for name in model.model_fields})
_COLUMN = re.compile(" at line 1 column")
_SHOWN = 60
"""Largest number of characters of a wrong value in a sentence."""


def parse_case(text: str, where: str) -> Case:
    """Parse a case from JSON without converting types: a score in quotes is wrong. `where` begins an error.

    Raises:
        DamagedFile: it is not a case.
    """
    try:
        return Case.model_validate_json(text, strict=True)
    except ValidationError as error:
        fault = error
    if any(each["type"] == "extra_forbidden" for each in fault.errors(include_url=False)):
        try:
            return Case.model_validate_json(_without_client_fields(text), strict=True)
        except ValidationError as error:
            fault = error
    raise DamagedFile(f"{where}{fault_of(fault)}; correct it and read the file again.")


def _without_client_fields(text: str) -> str:
    """Return a case without fields of messages that clients add: thinking, and empty ones such as `refusal`."""
    case = json.loads(text)
    for place in ("attempt", "retry"):
        attempt = case.get(place)
        messages = attempt.get("messages") if isinstance(attempt, dict) else None
        if isinstance(messages, list):
            attempt["messages"] = [_own_fields(message) for message in messages]
    return json.dumps(case)


def _own_fields(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    own = ChatMessage.model_fields
    return {name: value for name, value in message.items() if name in own or (value and name not in THINKING)}


def fault_of(error: ValidationError) -> str:
    """Describe what is wrong with a case, as the end of a sentence: `, attempt.score: Input should be ...`.

    A value that fits none of several types is described by the error that is deepest inside it.
    """
    faults = error.errors(include_url=False)
    fault = max(faults, key=lambda each: len(_path(each["loc"]))) if _is_union(faults[0]) else faults[0]
    path, kind = _path(fault["loc"]), fault["type"]
    where = f", {'.'.join(path)}" if path else ""
    if kind == "extra_forbidden":
        close = get_close_matches(path[-1], _NAMES, n=1)
        return f"{where}: there is no such field" + (f" (did you mean {close[0]!r}?)" if close else "")
    if kind == "missing":
        return f"{where}: the field is missing"
    if kind == "json_invalid":
        return f": it is not JSON ({_COLUMN.sub(' at column', fault['msg'].removeprefix('Invalid JSON: '))})"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if kind == "value_error" else f"{where}: {message}, not {_shown(fault['input'])}"


def _path(loc: tuple[int | str, ...]) -> list[str]:
    """Return the fields that lead to a value, without the types that pydantic has tried for it."""
    return [str(part) for part in loc if isinstance(part, int) or (part.isidentifier() and not _is_type(part))]


def _is_type(part: str) -> bool:
    return part in ("str", "float", "int", "bool", "list", "dict")


def _is_union(fault: Any) -> bool:
    return any(isinstance(part, str) and (_is_type(part) or not part.isidentifier()) for part in fault["loc"])


def _shown(value: Any) -> str:
    shown = re.sub(r"\s+", " ", repr(value))
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
