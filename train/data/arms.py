"""An arm of rated reflections to train on."""

from typing import NamedTuple

from retroformer.rating import Rerating
from retroformer.store import Store


class RatedArm(NamedTuple):
    """An arm of rated reflections."""

    store: Store
    arm: str
    anew: Rerating | None
    """Rule that rates them anew; None for their stored ratings."""
    left_out: frozenset[str]
    """Tasks whose stories have a mark of `train.leave_out`."""
