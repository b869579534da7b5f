"""What all chapters of a report are made from: the rates of an evaluation, and the stored facts of each task."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import adapter_name
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.environments.registry import extras
from retroformer.files.document import Cell, Paragraph, Part, Table, unbroken
from retroformer.method.records import Task
from retroformer.run.adapters import is_trained
from retroformer.run.arm_names import first_trial
from retroformer.run.store import Store
from retroformer.run.store.reading import chunks

from ..measure.results import ArmResult
from ..measure.statistics import MeanInterval, Rates
from ..play.verify import VerifiedModel

_TASKS_AT_ONCE = 100
"""Number of tasks whose records are in memory together."""


@dataclass(frozen=True)
class ReportInput:
    """Config, tasks, rates and verified models of an evaluation."""

    experiment: Experiment
    tasks: Sequence[Task]
    rates: Rates
    verified: Sequence[VerifiedModel]
    store: Store
    actor_sha256: str | None = None
    """Hash of the actor's adapter, if the experiment's own server serves one."""
    name: str = ""
    """Name of the actor or repeat if the config has several."""

    @property
    def results(self) -> Sequence[ArmResult]:
        """Results over the tasks that every arm finished."""
        return self.rates.finished

    @property
    def models(self) -> list[str]:
        """Names of the models that wrote advice, and of those that acted in the retries of an arm."""
        return [*(model.model for model in self.verified), *self.experiment.eval.actor_models]

    @property
    def clusters(self) -> list[str]:
        """Cluster of each task if several tasks are in the same one, else empty."""
        cluster_of = extras(self.experiment.environment).cluster_of
        clusters = [cluster_of(task) for task in self.tasks] if cluster_of else []
        return clusters if len(set(clusters)) < len(clusters) else []

    def reads_solution(self, name: str) -> bool:
        """Return True if the advice of this arm uses the solution, which no reflector sees."""
        arm = self.experiment.eval.arms.get(name)
        return arm is not None and arm.reads_solution

    @property
    def reference(self) -> str:
        """Arm that all others are compared with: the first."""
        return self.results[0].name

    @property
    def folder(self) -> Path:
        return self.experiment.report_folder / self.name

    def facts(self) -> Iterator[TaskFacts]:
        """Read the stored facts of all arms, task by task. Raises StoreError."""
        firsts = {seed.stored: seed.first_trial for arm in self.results for seed in arm.seeds}
        return facts_by_task(self.store, first_trial(self.name), firsts)


def trained_against_untrained(experiment: Experiment, reference: str) -> list[tuple[str, str]]:
    """Return each arm of trained models, the last of the config first, with the first arm of the base.

    Without one it is compared with the reference.
    """
    written_by = {name: {adapter_name(model) for model in arm.models} for name, arm in experiment.eval.arms.items()}
    untrained = next((name for name, models in written_by.items() if models == {"base"}), reference)
    trained = [name for name, models in written_by.items() if any(is_trained(experiment, model) for model in models)]
    return [(name, untrained) for name in reversed(trained) if name != untrained]


def views(rates: Rates, build: Callable[[Sequence[ArmResult]], Iterable[Part]]) -> list[Part]:
    """Return the parts once if every arm finished every task, else for each choice of tasks below a sentence."""
    if not rates.unfinished:
        return list(build(rates.finished))
    parts: list[Part] = [Paragraph(words="No task was finished by every arm.")]
    if rates.finished_tasks:
        parts = [Paragraph(words=f"Over the {rates.finished_tasks} tasks that every arm finished:")]
        parts += build(rates.finished)
    parts.append(Paragraph(words=f"Over all {rates.tasks} tasks, unfinished ones counted as failures:"))
    for part in build(rates.all_tasks):
        of_all = isinstance(part, Table) and part.tasks is None
        parts.append(part.model_copy(update={"tasks": rates.tasks}) if of_all else part)
    return parts


def interval_cell(interval: MeanInterval, after: str = "", arms: tuple[str, ...] = ()) -> Cell:
    return Cell(words=(unbroken(str(interval)), after), value=interval.mean, arms=arms)


def each_seed(results: Sequence[ArmResult], facts: TaskFacts) -> Iterator[tuple[ArmResult, SeedFacts]]:
    """Yield each arm with the facts of each of its training seeds."""
    for arm in results:
        for stored in arm.stored_names:
            yield arm, facts.seeds[stored]


def facts_by_task(store: Store, shared: str, firsts: Mapping[str, str]) -> Iterator[TaskFacts]:
    """Read the shared trial 0 and all arms side by side, in the order of the task ids. Raises StoreError.

    `firsts` has the name of the trial 0 of each arm. Only one query is open at a time, so any number of arms needs a
    single connection.
    """
    task_ids = sorted(set[str]().union(*map(store.tasks, (shared, *firsts.values(), *firsts))))
    for some_ids in chunks(task_ids, _TASKS_AT_ONCE):
        yield from _read(store, shared, firsts, some_ids)


def _read(store: Store, shared: str, firsts: Mapping[str, str], task_ids: Sequence[str]) -> list[TaskFacts]:
    played = {
        name: {key.task_id: attempt for key, attempt in store.stream_trajectories(name, task_ids)}
        for name in {shared, *firsts.values()}
    }
    seeds = {
        task_id: {
            arm: SeedFacts({0: played[first][task_id]} if task_id in played[first] else {}, {})
            for arm, first in firsts.items()
        }
        for task_id in task_ids
    }
    for arm in firsts:
        for key, attempt in store.stream_trajectories(arm, task_ids):
            seeds[key.task_id][arm].attempts[key.trial] = attempt
        for reflection in store.stream_reflections(arm, task_ids):
            seeds[reflection.key.task_id][arm].reflections[reflection.key.trial] = reflection.reflection
    return [TaskFacts(task_id, played[shared].get(task_id), seeds[task_id]) for task_id in task_ids]
