"""Config section of WebShop."""

from pathlib import Path
from typing import ClassVar, Literal

from retroformer.environments.section import EnvironmentSection
from retroformer.experiment.sections.base import Positive

GOALS_PER_PRODUCT = 5
"""Maximum number of goals per product in the split train: some products have hundreds of nearly equal goals, and a
reflector should not be trained on one product. The split `all` has every goal."""


class Webshop(EnvironmentSection):
    success: ClassVar[str] = "a reward of 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    packages: ClassVar[tuple[str, ...]] = ("rapidfuzz",)
    name: Literal["webshop"] = "webshop"
    data: Path | None = None
    """Folder with WebShop's files: items_shuffle*.json, items_ins_v2*.json and optional others, each also as .xz."""
    split: str = "train"
    """Split: test (the first 500 goals), validation (the next 1,000), train (the others), or `all`."""
    goals: Literal["synthetic", "human"] = "synthetic"
    """Kind of instructions: made from products' attributes and options, or written by people."""
    max_steps: Positive = 15
    """Actions after which an episode is truncated."""
