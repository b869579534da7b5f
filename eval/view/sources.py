"""Runs as the viewer reads them: an open store, the run's folder, and the environment's check for leaks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from retroformer.environments.registry import extras
from retroformer.errors import RetroformerError
from retroformer.experiment.config import Experiment
from retroformer.records import Trajectory
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

    @cached_property
    def leaks(self) -> Leaks | None:
        """The environment's check for advice that gives the solution away; None without config, check or data."""
        if self.experiment is None:
            return None
        try:
            offered = extras(self.experiment.environment).leak_check
            check = offered(self.experiment.environment, self.experiment.seed) if offered is not None else None
        except RetroformerError:
            return None
        if check is None:
            return None

        def leaks(advice: str, attempts: Sequence[Trajectory]) -> bool:
            try:
                return bool(check.given_away(advice, attempts))
            except RetroformerError:
                return False

        return leaks
