"""Config section of environments of verifiers."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from retroformer.environments.section import EnvironmentSection
from retroformer.experiment.sections.base import Positive


class Verifiers(EnvironmentSection):
    success: ClassVar[str] = "a return of 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
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
    lowest: float = 0.0
    """Reward that maps to a return of 0; lower rewards do, too."""
    highest: float = 1.0
    """Reward that is a return of 1; so is any above it."""
    max_steps: Positive = 20
    """Turns of the model after which an episode is truncated."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("lowest must be less than highest")
        return self

    def score(self, reward: float) -> float:
        """Return the reward of a rubric on the scale from 0 to 1."""
        return min(1.0, max(0.0, (reward - self.lowest) / (self.highest - self.lowest)))
