"""Input of a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from retroformer.environments.registry import extras
from retroformer.experiment.config import Experiment
from retroformer.records import Task
from retroformer.store import Store

from ..measure.results import ArmResult
from ..play.arms import actor_models
from ..play.verify import VerifiedModel


class ReportInput(NamedTuple):
    """Config, tasks, results and verified models of an evaluation."""

    experiment: Experiment
    tasks: Sequence[Task]
    results: Sequence[ArmResult]
    verified: Sequence[VerifiedModel]
    store: Store
    actor_sha256: str | None = None
    """Hash of the actor's adapter, if the experiment's own server serves one."""
    name: str = ""
    """Name of the actor or repeat if the config has several."""

    @property
    def models(self) -> list[str]:
        """Names of the models that wrote advice, and of those that acted in the retries of an arm."""
        return [*(model.model for model in self.verified), *actor_models(self.experiment)]

    @property
    def clusters(self) -> list[str]:
        """Cluster of each task if several tasks are in the same one, else empty."""
        cluster_of = extras(self.experiment.environment).cluster_of
        clusters = [cluster_of(task) for task in self.tasks] if cluster_of else []
        return clusters if len(set(clusters)) < len(clusters) else []

    @property
    def folder(self) -> Path:
        """Folder of the report."""
        return self.experiment.report_folder / self.name
