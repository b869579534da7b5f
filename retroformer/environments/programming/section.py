"""Config section of programming."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from retroformer.environments.programming.limits import DEFAULT
from retroformer.environments.section import EnvironmentSection
from retroformer.experiment.sections.base import Positive

_BUILDING_SECONDS = 1200.0
"""Upper bound on the time of all compilers and jails of one judged program."""


class Programming(EnvironmentSection):
    success: ClassVar[str] = "the hidden tests pass"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    name: Literal["programming"] = "programming"
    data: Path | None = None
    """Folder with the files of the problem sets, as published."""
    split: str = "humaneval"
    """Problem set: humaneval, mbpp, multipl-e-humaneval-rust and others, or a file of your own, NAME.jsonl."""
    own_tests: Annotated[int, Field(ge=0, le=32)] = 6
    """Maximum number of the agent's own tests that are kept; 0 is the ablation without them."""
    max_steps: Positive = 2
    """Actions after which an episode is truncated: tests, then the program."""

    @property
    def longest_step_seconds(self) -> float:
        """Maximum wall-clock seconds for judging one program; under any load its own limits end it sooner."""
        return (self.own_tests + 2) * (DEFAULT.wall_seconds + 1.0) + _BUILDING_SECONDS
