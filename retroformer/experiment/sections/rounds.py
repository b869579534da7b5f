"""Section `rounds` of the config."""

from typing import Annotated, Literal

from pydantic import Field

from retroformer.experiment.sections.base import Positive, Section


class Rounds(Section):
    """Rounds of collecting, training and validating (`retroformer rounds`)."""

    count: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of rounds."""
    stages: Annotated[tuple[Literal["sft", "reward", "ppo", "dpo", "grpo"], ...], Field(min_length=1)] = ("sft",)
    """Stages to train in each round, in this order. The adapter of the last one is compared with the best so far."""
    split: str | None = None
    """Split of the development tasks, on which reflectors are compared; it must be neither trained nor evaluated on."""
    staleness: Annotated[int, Field(ge=0, le=10)] = 0
    """Number of rounds by which the reflector that collects may lag behind. 0: one step after the other; 1: while a
    round trains, the next one is collected with the best reflector so far."""
    tasks: Positive | None = None
    """Number of development tasks; None: all of the split."""
