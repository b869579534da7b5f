"""Base of all facts, and how optional fields look in JSON."""

from pydantic import BaseModel, ConfigDict, Field

OMIT_NONE = Field(exclude_if=lambda value: value is None)
"""Mark of an optional field that JSON shows only if it has a value, so that records of earlier versions are equal."""
OMIT_EMPTY = Field(exclude_if=lambda value: not value)
"""Mark of a field that JSON shows only if it is not empty, zero or false."""


class Record(BaseModel):
    """Immutable fact."""

    model_config = ConfigDict(frozen=True, extra="forbid")
