"""Removes from text what a database cannot hold: NUL, which PostgreSQL refuses, and halves of surrogate pairs.

Every fact passes through here on its way into the store, whatever model or environment its text came from.
"""

from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError

from retroformer.records import Record

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
        return record, text
    cleaned = type(record).model_validate(_cleaned(record.model_dump()))
    return cleaned, cleaned.model_dump_json()


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {name: _cleaned(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
