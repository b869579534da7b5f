"""Section `collect` of the config."""

from typing import Annotated, Literal

from pydantic import Field

from retroformer.experiment.sections.base import Positive
from retroformer.experiment.sections.loop import Spending


class Collect(Spending):
    tasks: Positive | None = None
    """Number of tasks of the split to use; None: all of them (a generated split needs a number)."""
    order: Literal["official", "shuffled"] = "official"
    """Order of the split's tasks before `tasks` applies. shuffled: by the seed, for splits in which task types
    come in blocks."""
    candidates: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of reflections sampled for each failure, each followed by a rollout (2, a pair, in the paper)."""
    repeats: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of rollouts with each reflection, for an actor that is not deterministic."""
    written: Annotated[int, Field(ge=0)] = 0
    """Number of pieces of advice to write by rule for the warm start (`retroformer collect warm`); 0: none."""
    lesson: str = "mixed"
    """Content of that advice. mixed: the form of advice, both good and useless; useful: what was seen, or
    places to try."""
