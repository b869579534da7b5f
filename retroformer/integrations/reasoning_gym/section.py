"""Config section of reasoning-gym."""

import hashlib
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from retroformer.environments.section import EnvironmentSection

_SPACING = 2**30
"""Distance between the seeds of two splits. Task `n` of a dataset is generated from its seed plus `n`, so datasets of
neighbouring seeds share tasks."""
Split = Literal["train", "held_out"]


class ReasoningGym(EnvironmentSection):
    success: ClassVar[str] = "a score of 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    packages: ClassVar[tuple[str, ...]] = ("reasoning-gym",)
    default_actor: ClassVar[str] = "answer"
    name: Literal["reasoning-gym"] = "reasoning-gym"
    families: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """Datasets of the package by name, each with its settings: {chain_sum: {max_terms: 4}, spell_backward: {}}."""
    split: Split = "train"
    """Split; each has seeds of its own."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the tasks."""
    size: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Number of tasks of each family in each split."""
    max_steps: Annotated[int, Field(ge=1, le=1)] = 1
    """An attempt is one answer."""

    @property
    def dataset_seed(self) -> int:
        """Seed of the datasets of this split, below 2**31, as NumPy accepts no larger ones."""
        first = int.from_bytes(hashlib.sha256(str(self.seed).encode()).digest()[:4], "big") % _SPACING
        return first if self.split == "train" else first + _SPACING
