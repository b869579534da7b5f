"""Config section of environments of verifiers."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from retroformer.config.sections.base import Positive
from retroformer.environments.section import ScaledSection


class Verifiers(ScaledSection):
    packages: ClassVar[tuple[str, ...]] = ("verifiers",)
    default_actor: ClassVar[str] = "answer"
    name: Literal["verifiers"] = "verifiers"
    environment: str
    """Name of the environment, as `verifiers.load_environment` takes it: an installed module."""
    args: dict[str, Any] = Field(default={})
    """Arguments of the environment's own `load_environment`."""
    split: Literal["train", "held_out"] = "train"
    """Split: the training or the evaluation dataset of the environment."""
    held_out: Annotated[int, Field(ge=0)] = 0
    """Number of tasks at the end of the dataset that are the split held_out, for an environment with one dataset."""
    max_steps: Positive = 20
    """Turns of the model after which an episode is truncated."""
