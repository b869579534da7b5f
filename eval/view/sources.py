"""Runs as the viewer reads them: an open store, the run's folder, and the environment's check for leaks."""

from dataclasses import dataclass
from pathlib import Path

from retroformer.experiment.config import Experiment
from retroformer.store import Store
from retroformer.stories.flags import Leaks
from retroformer.stories.runs import OpenRun


@dataclass(frozen=True, eq=False)
class Source:
    """A run that is shown."""

    run: OpenRun

    @property
    def store(self) -> Store:
        return self.run.store

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def folder(self) -> Path:
        return self.run.folder

    @property
    def experiment(self) -> Experiment | None:
        return self.run.experiment

    @property
    def leaks(self) -> Leaks | None:
        return self.run.leaks
