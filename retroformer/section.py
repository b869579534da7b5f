"""What all sections of an experiment page have in common."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Part of a page: what it does not know is an error, and it never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _an_empty_section_is_its_default(cls, page: Any) -> Any:
        if not isinstance(page, dict):
            return page
        sections = {name for name, one in cls.model_fields.items() if isinstance(one.default, Section)}
        return {name: value for name, value in page.items() if value is not None or name not in sections}
