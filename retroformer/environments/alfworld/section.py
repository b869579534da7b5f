"""Config section of ALFWorld."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from retroformer.environments.section import EnvironmentSection
from retroformer.experiment.sections.base import Positive


class Alfworld(EnvironmentSection):
    success: ClassVar[str] = "the game is won"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    packages: ClassVar[tuple[str, ...]] = ("alfworld", "textworld")
    name: Literal["alfworld"] = "alfworld"
    data: Path | None = None
    """Folder as in ALFWORLD_DATA, or of SPLIT.tar.zst packs; default: $ALFWORLD_DATA, else `alfworld-download`'s."""
    split: str = "train"
    """Split: train, valid_seen or valid_unseen; for generated games train or held_out."""
    source: Literal["released", "generated"] = "released"
    """Source of the games: the official release, or our own unlimited seeded generator."""
    grammar: Literal["put", "move"] = "move"
    """Action grammar: `put X in/on Y` of the papers, or `move X to Y` of alfworld >= 0.4."""
    task_types: tuple[Literal["look", "pick", "clean", "cool", "heat", "two"], ...] = ()
    """Task types to play; empty means all six."""
    receptacles: Annotated[int, Field(ge=6, le=40)] = 12
    """Number of places in a generated room; more make the search longer."""
    max_steps: Positive = 50
    """Actions after which an episode is truncated (50 in the papers)."""

    @property
    def seeded_tasks(self) -> bool:
        """True for generated games, which are drawn by the seed."""
        return self.source == "generated"
