"""What a report is made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from eval.outcome import ArmOutcome
from eval.verify import Verified
from retroformer.config import Experiment
from retroformer.records import Task
from retroformer.store import Store


class Findings(NamedTuple):
    """All that was asked, played and verified."""

    experiment: Experiment
    tasks: Sequence[Task]
    outcomes: Sequence[ArmOutcome]
    verified: Sequence[Verified]
    store: Store
    actor_sha256: str | None = None
    """Of the adapter that acts, where the experiment's own server serves one."""
    actor: str = ""
    """Its name where the page compares several."""

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        return self.experiment.folder / "eval" / self.actor
