"""What all sections of an experiment page have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Part of a page: what it does not know is an error, and it never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
