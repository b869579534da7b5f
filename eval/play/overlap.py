"""Refuses tasks that were used for training: in this run, in runs whose attempts an arm counts or its document was
optimised on, or of any adapter that the evaluation serves.

The training stages record their tasks in metrics.json beside each adapter, with those of the adapters they start from.
An adapter of another run is so checked without that run's store. A reflector or actor behind an address of its
own has no folder and passes.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

from retroformer.arm_names import is_for_training
from retroformer.errors import ConfigError
from retroformer.experiment.actors import actor_kind
from retroformer.experiment.adapters import model_folder, reward_folder, served_folder
from retroformer.experiment.best_of import adapter_name, best_of
from retroformer.experiment.config import Experiment
from retroformer.experiment.storage import open_store
from retroformer.records import Task, task_of_story
from retroformer.stage_metrics import METRICS, StageMetrics, read_metrics
from retroformer.store import Store

from .arms import actor_models, reads_attempts, reflector_models, runs_of_document


def refuse_tasks_of_runs(experiment: Experiment, tasks: Sequence[Task]) -> None:
    """Refuse tasks of the runs whose collected attempts an arm counts or its document was optimised on.

    Raises:
        ConfigError: a run has collected training facts on one of these tasks.
        StoreError: a store cannot be read.
    """
    arms = experiment.eval.arms.values()
    counted = (arm.runs if reads_attempts(experiment, arm) else runs_of_document(arm) for arm in arms)
    for run in dict.fromkeys(chain.from_iterable(counted)):
        source = experiment.model_copy(update={"run": run})
        if source.has_store:
            with closing(open_store(source)) as store:
                refuse_trained_tasks(store, tasks)


def refuse_trained_tasks(store: Store, tasks: Sequence[Task]) -> None:
    """Raise ConfigError if the run of this store collected training facts on one of these tasks.

    A task that was only played counts, too: the places and the attempts of a solved task are read by hindsight.
    """
    chosen = {task.id for task in tasks}
    trained_on = (store.tasks(arm) for arm in store.arms() if is_for_training(arm))
    if shared := sorted(chosen.intersection(map(task_of_story, chain.from_iterable(trained_on)))):
        raise ConfigError(
            f"{len(shared)} of {len(tasks)} evaluation tasks were used for training, such as {shared[0]!r}: "
            "name another split with eval.split=NAME."
        )


def refuse_adapters_trained_on(experiment: Experiment, tasks: Sequence[Task]) -> None:
    """Refuse tasks that an adapter served for this evaluation was trained on, in whatever run that was.

    Raises:
        ConfigError: an adapter was trained on one of these tasks.
        DamagedFile: the metrics beside an adapter are damaged.
    """
    for name, folder in _served_folders(experiment):
        refuse_adapter_trained_on(experiment, name, folder, tasks)


def refuse_adapter_trained_on(experiment: Experiment, name: str, folder: Path, tasks: Sequence[Task]) -> None:
    """Refuse tasks that the adapter in `folder` was trained on. Raises ConfigError, DamagedFile."""
    chosen = {task.id for task in tasks}
    if (folder / METRICS).is_file() and (shared := sorted(chosen & _trained_on(read_metrics(folder), experiment))):
        raise ConfigError(
            f"{len(shared)} of {len(tasks)} evaluation tasks were used to train {name!r} ({folder}), such as "
            f"{shared[0]!r}: name another split with eval.split=NAME, or serve another adapter."
        )


def _served_folders(experiment: Experiment) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each adapter that the experiment's own server serves for this evaluation."""
    models = reflector_models(experiment.eval.arms) if experiment.reflector.endpoint.base_url is None else []
    for model in models:
        name = adapter_name(model)
        yield model, served_folder(experiment, name)
        if best_of(model):
            yield model, reward_folder(experiment, name)
    if actor_kind(experiment).asks_model and experiment.actor.endpoint.base_url is None:
        for model in (experiment.actor.endpoint.model, *actor_models(experiment)):
            yield model, model_folder(experiment, adapter_name(model))


def _trained_on(metrics: StageMetrics, experiment: Experiment) -> frozenset[str]:
    """Return the tasks of this experiment's environment that an adapter was trained on, with those that SAC played."""
    played = metrics.measure("tasks") or ()
    return frozenset(
        task_of_story(task)
        for training in metrics.recorded_tasks or ()
        if training.are_of(experiment)
        for task in (*training.tasks, *played)
    )
