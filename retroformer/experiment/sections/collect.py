"""Section `collect` of the config."""

from typing import Annotated, Literal

from pydantic import Field

from retroformer.experiment.sections.base import Positive
from retroformer.experiment.sections.loop import Spending

Branch = Literal["best", "every"]


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
    unadvised: bool = False
    """If true, every failure is also retried without advice, and reflections are rated against these retries instead of
    the failure: an actor that samples may solve a task by luck."""
    branch: Branch = "best"
    """Failed retries that get reflections of their own. best: the one with the highest return, if it failed (the
    paper's chain); every: all of them, which costs up to `candidates` times as many rollouts in each further trial."""
    written: Annotated[int, Field(ge=0)] = 0
    """Number of pieces of advice to write by rule for the warm start (`retroformer collect warm`); 0: none."""
    lesson: str = "mixed"
    """Content of that advice. mixed: the form of advice, both good and useless; useful: what was seen, or
    places to try."""

    def most_retries(self, trials: int) -> int:
        """Return the number of reflections on a task, each followed by a retry, if every attempt fails."""
        if self.branch == "best":
            return (trials - 1) * (self.candidates + self.unadvised)
        return sum(self.candidates ** (trial - 1) * (self.candidates + self.unadvised) for trial in range(1, trials))
