"""Several rounds: collect with the best reflector so far, train, and compare the result with it on development tasks.

Each step is a command of its own, so it can be killed and repeated like any other. Nothing else is stored: which
reflector is the best follows from the results on the development tasks, in the run RUN.development.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from retroformer.arm_names import evaluation
from retroformer.errors import ConfigError, ServiceError
from retroformer.experiment.config import Experiment
from retroformer.experiment.file import load
from retroformer.experiment.parts import chosen_tasks
from retroformer.experiment.storage import open_whole_store
from retroformer.stages import Stage, stage_package

from ..measure.results import arm_results


def improve_in_rounds(config: Path, overrides: Sequence[str]) -> Iterator[str]:
    """Run `rounds.count` rounds; yield a sentence about each, and one about the best reflector.

    Raises:
        ConfigError: the config names no development tasks, or has domains.
        ServiceError: a step failed; it has printed why.
    """
    experiment = load(config, overrides)
    if experiment.rounds.split is None or experiment.domains:
        raise ConfigError(
            "Rounds need development tasks of one environment: set rounds.split to a split that is neither trained on "
            "nor evaluated on."
        )
    best, solved = experiment.reflector.endpoint.model, dict[str, float]()
    for number in range(1, experiment.rounds.count + 1):
        own = [*overrides, f"round={number}", f"reflector.endpoint.model={best}"]
        _run("collect", [str(config), *own])
        for stage in experiment.rounds.stages:
            _run("train", [stage, str(config), *own])
        candidate = experiment.model_copy(update={"round": number}).stage_folder(experiment.rounds.stages[-1]).name
        _run("eval", [str(config), *overrides, *_comparing(experiment, [best, candidate])])
        solved |= _solved(experiment, config, overrides, [best, candidate])
        shares = ", ".join(f"{name} {solved[name]:.3f}" for name in (best, candidate))
        yield f"round {number}: share of the development tasks solved: {shares}"
        if solved[candidate] > solved[best]:
            best = candidate
    yield f"best reflector: {best}, which solves {solved[best]:.3f} of the development tasks"


def _run(stage: Stage, words: Sequence[str]) -> None:
    done = subprocess.run([sys.executable, "-m", stage_package(stage), *words], check=False)
    if done.returncode:
        raise ServiceError(f"`retroformer {stage} {' '.join(words)}` failed: mend it, and run the same command again.")


def _comparing(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """Return the overrides that compare these reflectors on the development tasks."""
    folders = {name: experiment.folder / name for name in names}
    adapters = {name: str(folder) for name, folder in folders.items() if folder.is_dir()}
    own = {name: str(folder) for name, folder in experiment.serve.adapters.items()}
    arms: dict[str, Any] = {name: {"kind": "model", "model": name} for name in names}
    return [
        f"run={experiment.run}.development",
        f"eval.split={experiment.rounds.split}",
        f"eval.tasks={experiment.rounds.tasks or 'null'}",
        f"eval.arms={json.dumps(arms)}",
        f"eval.reference={names[0]}",
        "eval.examples=null",
        "eval.comparisons=[]",
        f"serve.adapters={json.dumps(own | adapters)}",
    ]


def _solved(experiment: Experiment, config: Path, overrides: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Return the share of the development tasks that each of these reflectors solves by the last trial."""
    development = load(config, [*overrides, *_comparing(experiment, names)])
    tasks = chosen_tasks(development, development.eval.tasks, (str(experiment.rounds.split),))
    with closing(open_whole_store(development)) as store:
        results = arm_results(store, tasks, {name: [evaluation(name)] for name in names}, development.loop.trials)
    return {result.name: float(result.solved_NT[-1].mean()) for result in results}
