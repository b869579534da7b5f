"""Several rounds: collect with the best reflector so far, train, and compare the result with it on development tasks.

Each step is a command of its own, so it can be killed and repeated like any other. Nothing else is stored: which
reflector is the best follows from the results on the development tasks, in the run RUN.development.

With `rounds.staleness`, the next rounds are collected while a round trains, with the best reflector that is known by
then. Facts carry the hash of their reflector, and with `train.grpo.reward: stored`, which weighs them by those, the
probabilities with which it wrote them.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Self

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.config.imports import Stage, stage_package
from retroformer.config.parts import held_out_tasks
from retroformer.errors import ConfigError, ServiceError
from retroformer.run.store import open_whole_store

from .measure.results import arm_results
from .measure.statistics import Rates
from .report.files import read_report


def improve_in_rounds(config: Path, overrides: Sequence[str]) -> Iterator[str]:
    """Run `rounds.count` rounds; yield a sentence about each, one about the best reflector, and one about the time.

    Raises:
        ConfigError: the config names no development tasks, or some that it trains or evaluates on, or has domains.
        ServiceError: a step failed; it has printed why.
    """
    experiment = load(config, overrides)
    rounds, began = experiment.rounds, time.monotonic()
    if rounds.split is None or experiment.domains:
        raise ConfigError(
            "Rounds need development tasks of one environment: set rounds.split to a split that is neither trained on "
            "nor evaluated on."
        )
    if rounds.split in (experiment.environment.split, *experiment.held_out_splits):
        raise ConfigError(
            f"rounds.split={rounds.split}: the config trains or evaluates on this split, but a reflector must be "
            "chosen on other tasks. Name another split in rounds.split, or in environment.split or eval.split."
        )
    best, solved = [experiment.reflector.endpoint.model], dict[str, float]()
    collector, trainer = _Worker(), _Worker()
    collecting = list[Future[None]]()
    with collector, trainer:
        for number in range(1, rounds.count + 1):
            # The reflector of a round depends on the results of earlier ones alone, so a repeated command is the same.
            for ahead in range(len(collecting) + 1, min(rounds.count, number + rounds.staleness) + 1):
                reflector = best[max(0, ahead - 1 - rounds.staleness)]
                own = [*overrides, f"round={ahead}", f"reflector.endpoint.model={reflector}"]
                # Where advice of a teacher was imitated well, the reflector's own advice is rated from then on.
                own += ["reflector.teacher=null"] if reflector != best[0] else []
                # Two servers of one config would want the same port.
                own += ["serve.port=0"] if rounds.staleness else []
                collecting.append(collector.submit("collect", [str(config), *own]))
            collecting[number - 1].result()
            own = [*overrides, f"round={number}", f"reflector.endpoint.model={best[-1]}"]
            for stage in rounds.stages:
                trainer.submit("train", [stage, str(config), *own]).result()
            candidate = experiment.model_copy(update={"round": number}).stage_folder(rounds.stages[-1]).name
            compared = [best[-1], candidate]
            trainer.submit("eval", [str(config), *overrides, *_comparison_overrides(experiment, compared)]).result()
            solved |= _shares(experiment, config, overrides, compared)
            shares = ", ".join(f"{name} {solved[name]:.3f}" for name in compared)
            yield f"round {number}: share of the development tasks solved: {shares}"
            best.append(max(compared, key=lambda name: solved[name]))
    yield f"best reflector: {best[-1]}, which solves {solved[best[-1]]:.3f} of the development tasks"
    yield (
        f"{time.monotonic() - began:.0f} s, of which {collector.seconds:.0f} s collecting and {trainer.seconds:.0f} s "
        "training and comparing"
    )


class _Worker:
    """Runs commands one after another beside this process. Leaving its context ends the command in work."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._starting, self._ended = threading.Lock(), False
        self._process: subprocess.Popen[bytes] | None = None
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._starting:
            self._ended = True
            if self._process is not None:
                # Its finished work is stored.
                self._process.terminate()
        self._thread.shutdown(cancel_futures=True)

    def submit(self, stage: Stage, words: Sequence[str]) -> "Future[None]":
        """Run a command after those before it. The future raises ServiceError if it fails."""
        return self._thread.submit(self._run, stage, words)

    def _run(self, stage: Stage, words: Sequence[str]) -> None:
        began = time.monotonic()
        with self._starting:
            # The next command may be taken before the context of one that failed is left.
            if self._ended:
                return
            self._process = subprocess.Popen([sys.executable, "-m", stage_package(stage), *words])
        status = self._process.wait()
        self.seconds += time.monotonic() - began
        if status:
            raise ServiceError(
                f"`retroformer {stage} {' '.join(words)}` failed: mend it, and run the same command again."
            )


def _comparison_overrides(experiment: Experiment, names: Sequence[str]) -> list[str]:
    """Return the overrides that compare these reflectors on the development tasks."""
    folders = {name: experiment.folder / name for name in names}
    adapters = {name: str(folder) for name, folder in folders.items() if folder.is_dir()}
    own = {name: str(folder) for name, folder in experiment.serve.adapters.items()}
    arms = {name: {"kind": "model", "model": name} for name in names}
    kept = experiment.eval.model_dump(mode="json", include={"temperature", "tokens", "dollars"})
    section = kept | {"split": experiment.rounds.split, "tasks": experiment.rounds.tasks, "arms": arms}
    return [
        f"run={experiment.run}.development",
        f"eval={json.dumps(section)}",
        f"serve.adapters={json.dumps(own | adapters)}",
    ]


def _shares(experiment: Experiment, config: Path, overrides: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Return the share of the development tasks that each of these reflectors solves by the last trial."""
    development = load(config, [*overrides, *_comparison_overrides(experiment, names)])
    tasks = held_out_tasks(development)
    with closing(open_whole_store(development)) as store:
        # An adapter that was trained again plays under another name in the store.
        stored_names = read_report(development.report_folder).arms
        arms = {name: stored_names[name] for name in names}
        last_counts = development.evaluator.last_counts
        results = arm_results(store, tasks, arms, development.loop.trials, last_counts=last_counts)
    return {result.name: float(result.solved_NT[-1].mean()) for result in Rates(results).finished}
