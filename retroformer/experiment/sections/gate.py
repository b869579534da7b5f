"""Section `gate` of the config: the test that an adapter has to pass before it is served as `reflector`."""

from typing import Annotated

from pydantic import Field

from retroformer.experiment.sections.base import Positive
from retroformer.experiment.sections.loop import Spending


class Gate(Spending):
    split: str | None = None
    """Split whose tasks both advisers play; None: the first of eval.split, else environment.split. The adapter must not
    be trained on it."""
    tasks: Positive | None = None
    """Largest number of tasks to play for one adapter; None: all of the split."""
    level: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    """Largest probability of promoting an adapter that is not better, and of rolling back one that is not worse."""
