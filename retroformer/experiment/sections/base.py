"""Base class of all sections of an experiment config."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Part of a config. It is immutable and rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _an_empty_section_is_its_default(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        sections = {name for name, field in cls.model_fields.items() if isinstance(field.default, Section)}
        return {name: value for name, value in values.items() if value is not None or name not in sections}
