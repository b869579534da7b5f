"""Config section common to all environments."""

import math
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from retroformer.config.sections.base import Positive, Section

Wording = Literal["demonstrated", "unseen", "either"]
"""Words of advice that a program writes."""
ArmWording = Wording | Literal["both"]
"""Words of an arm's advice. both: every sentence twice, in the demonstrated words and in the unseen ones."""


class EnvironmentSection(Section):
    """Keys of every environment; each adds its own in a subclass."""

    success: ClassVar[str] = "as the environment says"
    """Condition under which an attempt solves a task, as an oracle evaluator judges it, for reports."""
    returns: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    """Lowest and highest possible return of an attempt."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose version can change the environment's answers."""
    default_actor: ClassVar[str] = "rule"
    """Value of `actor.kind` if a config has none."""
    plays_alone: ClassVar[bool] = False
    """True if an action takes as long as a model's work, so that every rollout in flight needs its own process."""
    name: str
    """Name of the environment, from this project or an installed package's entry points."""
    data: Path | None = None
    """Folder of the environment's data."""
    split: str
    max_steps: Positive
    """Number of actions after which an episode is truncated."""

    def accepts_logs_rated_by(self, name: str) -> bool:
        """Return True if the return of this name, which rates imported logs, is the return of these settings."""
        return True

    @property
    def seeded_tasks(self) -> bool:
        """True if a task id stands for another task under another seed of the experiment."""
        return False

    @property
    def longest_step_seconds(self) -> float:
        """Maximum seconds of one action, if the environment enforces a limit; else 0."""
        return 0.0


class ScaledSection(EnvironmentSection):
    """Keys of an environment of another library, whose rewards are put on the scale from 0 to 1."""

    success: ClassVar[str] = "a return of 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    lowest: float = 0.0
    """Reward that is a return of 0; so is any below it."""
    highest: float = 1.0
    """Reward that is a return of 1; so is any above it."""

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("lowest must be less than highest")
        return self

    def scaled(self, reward: float) -> float:
        """Return a reward on the scale from 0 to 1."""
        return min(1.0, max(0.0, (reward - self.lowest) / (self.highest - self.lowest)))
