"""Removes from text what a database cannot hold, NUL and halves of surrogate pairs, and keys that a model repeats.

Every fact passes through here on its way into the store, whatever model or environment its text came from.
"""

from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError

from retroformer.records import Record
from retroformer.redaction import redacted_data

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

SomeRecord = TypeVar("SomeRecord", bound=Record)


def clean(text: str) -> str:
    """`text` with each character that cannot be stored replaced by U+FFFD."""
    if text.isascii() and "\0" not in text:
        return text
    kept = text.replace("\0", REPLACEMENT)
    return "".join(REPLACEMENT if "\ud800" <= character <= "\udfff" else character for character in kept)


def serialised(record: SomeRecord) -> tuple[SomeRecord, str]:
    """The record as it can be stored, and as JSON; a record without such characters is returned as it is."""
    try:
        text = record.model_dump_json()
    except (PydanticSerializationError, UnicodeEncodeError):
        text = ""
    # JSON escapes NUL. The six characters may also come from a text with a backslash, which cleaning leaves alone.
    if text and "\\u0000" not in text:
        if (hidden := redacted_data(text)) == text:
            return record, text
        return type(record).model_validate_json(hidden), hidden
    text = redacted_data(type(record).model_validate(_cleaned(record.model_dump())).model_dump_json())
    return type(record).model_validate_json(text), text


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {name: _cleaned(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
