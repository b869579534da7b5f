"""Cases as JSON lines: one case a line, in UTF-8, perhaps compressed (`.jsonl.gz`, `.jsonl.xz`)."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retroformer.cases.case import Case
from retroformer.cases.faults import fault_of
from retroformer.conversation import THINKING, ChatMessage
from retroformer.errors import DamagedFile
from retroformer.files.bounded import GIB, MIB, text_lines
from retroformer.files.durable import replacing
from retroformer.store.rows import serialised

CASE_BYTES = 16 * MIB
"""Largest case, as JSON."""
_FILE_BYTES = 64 * GIB


def read_jsonl(path: Path) -> Iterator[Case]:
    """Yield the cases of a file.

    Raises:
        DamagedFile: a line is not a case; the sentence names the line and the field.
        MissingInput: as `text_lines` raises it.
    """
    for number, line in text_lines(path, CASE_BYTES, _FILE_BYTES):
        yield parse_case(line.rstrip(), f"Line {number} of {path}")


def write_jsonl(path: Path, cases: Iterable[Case]) -> int:
    """Write a file, which appears complete or not at all, and return the number of its cases."""
    count = 0
    with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        for case in cases:
            file.write(f"{serialised(case)[1]}\n")
            count += 1
    return count


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
