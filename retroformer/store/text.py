"""Removes from text what a database cannot hold (NUL and unpaired surrogates) and API keys that a model repeats.

Every fact is cleaned here before it is stored, whatever model or environment its text came from.
"""

from typing import Any, TypeVar

from pydantic_core import PydanticSerializationError

from retroformer.files.characters import storable
from retroformer.records import Record
from retroformer.secrets.redaction import redacted_data

SomeRecord = TypeVar("SomeRecord", bound=Record)


def serialised(record: SomeRecord) -> tuple[SomeRecord, str]:
    """Return the record as it can be stored, and its JSON; a record without such text is returned unchanged."""
    try:
        text = record.model_dump_json()
    except (PydanticSerializationError, UnicodeEncodeError):
        text = ""
    # JSON escapes NUL. The six characters may also come from a text with a backslash, which cleaning leaves unchanged.
    if text and "\\u0000" not in text:
        if (hidden := redacted_data(text)) == text:
            return record, text
        return type(record).model_validate_json(hidden), hidden
    text = redacted_data(type(record).model_validate(_cleaned(record.model_dump())).model_dump_json())
    return type(record).model_validate_json(text), text


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {name: _cleaned(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value
