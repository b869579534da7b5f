"""The frame of every training stage: whether it is done, where it writes, and what it cost.

A stage's fingerprint is the sha256 over everything that determines its result: the base model, the settings of the
stage, the data, and the adapters that it starts from.

- If the stage's folder holds this fingerprint, the stage is done, and running it again does nothing.
- Otherwise the stage runs, and replaces the folder at its end.
- Checkpoints are stored under the fingerprint, so a killed stage resumes only with the same inputs.
"""

import hashlib
import json
import logging
import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from retroformer.config.experiment import Experiment
from retroformer.config.sections.train import FittedSteps, Steps
from retroformer.errors import MissingInput
from retroformer.files import durable
from retroformer.files.text import differences
from retroformer.models.embedded import base_model_folder
from retroformer.models.precision import stored_dtype
from retroformer.run.provenance import code_version, folder_sha256, package_versions
from retroformer.run.stage_metrics import METRICS, StageMetrics, TrainingTasks, read_metrics

from . import processes
from .adapter import Adapter, require_finite_weights, sound_adapter
from .base import compute_dtype, read_config
from .integrity import writing_to
from .model_card import CARD, adapter_card
from .stage_kinds import STAGES

CONFIG = "config.yaml"
LEAST_BATCH, LEAST_FAILURES, LARGEST_BATCH, BATCHES = 8, 4, 32, 32
"""Bounds of a batch, of texts or pairs and of a reward model's failures, and the number of batches that an epoch has
between them."""
LEAST_STEPS, MOST_EPOCHS = 30, 8
"""Optimiser steps that few texts are repeated for, and the bound of their repetition."""
RATE_TIMES_WIDTH, HIGHEST_RATE = 0.576, 2e-3
"""Product of learning rate and hidden size in imitation, which is 0.001 for the embedded model, and the bound."""
STILL = 1.0
"""Sum of learning rates, in fitted rates, below which a loss hardly moves (docs/training-cost.md)."""

logger = logging.getLogger(__name__)


class Stage(NamedTuple):
    """One stage of an experiment with its inputs, before it runs."""

    name: str
    experiment: Experiment
    inputs: dict[str, Any]
    """Everything that determines the result, in JSON's types."""
    tasks: tuple[TrainingTasks, ...] | None = None
    """Tasks that it and the adapters it starts from are trained on, by environment; None if they are not known."""
    rounds: Sequence[int] = ()
    """Rounds of collection whose ratings or failures it reads."""

    @property
    def steps(self) -> Steps:
        """The optimiser steps of a stage that trains a reflector."""
        return self.experiment.train.steps(self.name)

    @property
    def folder(self) -> Path:
        """Folder of the finished adapter."""
        return self.experiment.stage_folder(self.name)

    @property
    def fingerprint(self) -> str:
        """The sha256 of the inputs."""
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints of unfinished runs with these inputs."""
        return self.experiment.folder / "checkpoints" / f"{self.folder.name}-{self.fingerprint[:12]}"

    @property
    def logs(self) -> Path:
        """Folder of the tensorboard files."""
        return self.experiment.folder / "logs" / self.folder.name


def after_updates(stage: Stage, updates: int) -> Stage:
    """Return the stage as whose variant the policy is published after so many updates."""
    train = stage.experiment.train
    variants = train.variants | {stage.name: f"{train.variants.get(stage.name, '')}at{updates}"}
    return stage._replace(
        experiment=stage.experiment.model_copy(update={"train": train.model_copy(update={"variants": variants})})
    )


def refuse_missed_milestones(stage: Stage, milestones: Sequence[int], updates: int) -> None:
    """Refuse milestones of a policy that was not published when it had taken so many of its `updates`.

    Raises MissingInput.
    """
    for number in (number for number in milestones if number <= updates):
        if finished(milestone := after_updates(stage, number)) is None:
            raise MissingInput(
                f"{milestone.folder} can only be made by training again, as {stage.name} has taken {updates} updates: "
                f"leave the milestone {number} out, or delete {stage.folder} and {stage.checkpoints}."
            )


def make_stage(
    name: str,
    experiment: Experiment,
    data: Iterable[Any],
    adapters: Mapping[str, Adapter],
    tasks: Iterable[TrainingTasks] | None = None,
    rounds: Sequence[int] = (),
) -> Stage:
    """Describe the stage `name` on `data` (texts, in JSON's types), with the `adapters` it starts from, by role.

    `tasks` are the tasks behind the data, of these `rounds`. They do not determine the result, so they are no input.
    """
    data_sha256, count = _sha256_of_json(data)
    kind = STAGES[name]
    experiment = with_fitted_steps(experiment, name, count)
    train = experiment.train
    base = base_model_folder(train.base_model)
    inputs = {
        "base": folder_sha256(base),
        "quantization": train.quantization,
        # 4-bit weights are those of the files' numbers, whatever dtype computes with them.
        **({"quantized_from": stored_dtype(base)} if train.quantization == "nf4" else {}),
        "dtype": compute_dtype(train),
        "lora": train.lora.model_dump(),
        "trainer": train.trainer if kind.on_groups else None,
        "max_length": train.max_length,
        "max_new_tokens": experiment.reflector.max_new_tokens if kind.on_policy else None,
        # Another port or tolerance of the server changes nothing.
        "sampled_by_server": train.generation is not None if kind.on_policy else None,
        "pair_weight": train.pair_weight if kind.responses == 2 else None,
        # What is published on the way changes nothing at the end.
        "optimizer": train.settings(name).model_dump(exclude={"milestones"}),
        "batch_size": train.batch_size if kind.on_groups and name != "reward" else None,
        "micro_batch_tokens": None if kind.trains_actor else train.micro_batch_tokens,
        "chat_template_kwargs": train.chat_template_kwargs,
        "seed": experiment.seed,
        "data": data_sha256,
        "adapters": {role: adapter.sha256 for role, adapter in adapters.items()},
    }
    return Stage(name, experiment, inputs, None if tasks is None else _all_tasks(tasks, adapters.values()), rounds)


def with_fitted_steps(experiment: Experiment, name: str, count: int) -> Experiment:
    """Return a config that sets what a stage on `count` texts, pairs or failures needs to train.

    That is batch size, epochs and learning rate. Settings of the config stay. The rule is measured in
    docs/training-cost.md.
    """
    train, changes = experiment.train, dict[str, Any]()
    least = LEAST_FAILURES if name == "reward" else LEAST_BATCH
    batch = train.batch(name) or min(LARGEST_BATCH, max(least, count // BATCHES))
    if isinstance(section := train.settings(name), FittedSteps):
        epochs = min(MOST_EPOCHS, max(1, math.ceil(LEAST_STEPS * batch / max(1, count))))
        rate = section.learning_rate or fitted_rate(train.base_model, name)
        own = {"learning_rate": rate, "epochs": section.epochs or epochs}
        changes[name] = section.model_copy(update=own | ({"batch_size": batch} if name == "reward" else {}))
    if STAGES[name].on_groups and name != "reward":
        changes["batch_size"] = batch
    return experiment.model_copy(update={"train": train.model_copy(update=changes)})


def fitted_rate(base_model: str, stage: str) -> float:
    """Return the learning rate at which a stage trains LoRA on a base of this width."""
    hidden = read_config(base_model).get_text_config().hidden_size
    return float(f"{min(HIGHEST_RATE, RATE_TIMES_WIDTH / hidden) * STAGES[stage].rate_share:.1e}")


def warn_if_still(stage: Stage, steps: int, rate: float) -> None:
    """Say so in one sentence if the learning rates of all steps together cannot move the weights."""
    usual = fitted_rate(stage.experiment.train.base_model, stage.name)
    if steps * rate < STILL * usual and processes.is_main():
        logger.warning(
            "%s takes %d steps with a learning rate of %g, which will hardly change this base (%g is usual): leave the "
            "stage's learning_rate and number of steps out of the config, or raise the learning rate.",
            *(stage.name, steps, rate, usual),
        )


def _all_tasks(tasks: Iterable[TrainingTasks], adapters: Iterable[Adapter]) -> tuple[TrainingTasks, ...] | None:
    """Return these tasks with those of the adapters, by environment; None if those of an adapter are not recorded."""
    together = list(tasks)
    for adapter in adapters:
        recorded = adapter.metrics.training_domains
        if recorded is None:
            return None
        together += recorded
    ids: dict[tuple[str, int | None], set[str]] = {}
    for training in together:
        ids.setdefault((training.environment, training.seed), set()).update(training.tasks)
    return tuple(
        TrainingTasks(environment=environment, seed=seed, tasks=tuple(sorted(own)))
        for (environment, seed), own in ids.items()
    )


def _sha256_of_json(data: Iterable[Any]) -> tuple[str, int]:
    """Return the sha256 of `json.dumps(list(data))` and its number of different entries, with one of them in memory."""
    digest, different = hashlib.sha256(b"["), set[int]()
    for number, entry in enumerate(data):
        text = json.dumps(entry)
        digest.update(f"{', ' if number else ''}{text}".encode())
        different.add(hash(text))
    digest.update(b"]")
    return digest.hexdigest(), len(different)


def finished(stage: Stage) -> StageMetrics | None:
    """Return the metrics of the stage if it is done with these inputs, else None.

    Raises:
        DamagedFile, NotFinite, ProvenanceError: the stage is done, but its adapter or its metrics have changed since.
    """
    durable.put_back(stage.folder)
    if not (stage.folder / METRICS).is_file():
        return None
    metrics = read_metrics(stage.folder)
    if metrics.fingerprint != stage.fingerprint:
        if processes.is_main():
            # Names alone, since values may be hashes.
            changed = ", ".join(entry.partition("=")[0] for entry in differences(metrics.inputs, stage.inputs))
            logger.warning("%s has other inputs now (%s): it is trained again, from the start.", stage.folder, changed)
        return None
    return sound_adapter(stage.folder, metrics).metrics


def publish(stage: Stage, write: Callable[[Path], None], metrics: dict[str, Any]) -> None:
    """Let `write` save the adapter, add metrics, config and model card, and replace the stage's folder.

    Only the main process writes.

    Raises:
        NotFinite: a weight is infinite or not a number.
    """
    if not processes.is_main():
        return
    base_model = stage.experiment.train.base_model
    with replacing(stage.folder) as unfinished:
        write(unfinished)
        require_finite_weights(unfinished, "after training: nothing was published, and the checkpoints are kept.")
        _make_repeatable(unfinished / "adapter_config.json", base_model)
        (unfinished / CONFIG).write_text(yaml.safe_dump(stage.experiment.as_file(), sort_keys=False))
        facts = {
            "stage": stage.name,
            "fingerprint": stage.fingerprint,
            "inputs": stage.inputs,
            "rounds": list(stage.rounds),
            **({} if stage.tasks is None else {"training_domains": [tasks.model_dump() for tasks in stage.tasks]}),
            **metrics,
            "adapter_sha256": folder_sha256(unfinished),
            "code": code_version().model_dump(),
            "versions": package_versions(),
        }
        (unfinished / METRICS).write_text(json.dumps(facts, indent=2) + "\n")
        # Replaces the empty card that peft writes.
        card = adapter_card(stage.experiment, base_model_folder(base_model), facts)
        (unfinished / CARD).write_text(card, encoding="utf-8")
    _delete_in_one_rename(stage.checkpoints)


def _delete_in_one_rename(folder: Path) -> None:
    """Delete `folder` so that a kill leaves all of it or nothing: no run may resume from half of the checkpoints."""
    deleted = folder.with_name(f".{folder.name}.deleted")
    durable.delete(deleted)
    if folder.exists():
        folder.rename(deleted)
        # Without this, a power cut could undo the rename and keep some of the deletions.
        durable.sync_entries(folder.parent)
        durable.delete(deleted)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, which replaces `folder` when the block ends. The next call repairs what a kill leaves."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    durable.put_back(folder)
    durable.delete(unfinished)
    unfinished.mkdir(parents=True)
    try:
        with writing_to(unfinished):
            yield unfinished
            durable.publish(unfinished, folder)
    finally:
        durable.delete(unfinished)


def _make_repeatable(adapter_config: Path, base: str) -> None:
    """Replace entries that differ from run to run: the path of the base, and the order of the target modules.

    Both would change the adapter's hash.
    """
    settings = json.loads(adapter_config.read_text())
    settings["base_model_name_or_path"] = base
    settings["target_modules"] = sorted(settings["target_modules"])
    adapter_config.write_text(json.dumps(settings, indent=2) + "\n")


class Meter:
    """Measures time and memory from its construction on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def read(self, tokens: int, resumed_from: int) -> dict[str, float]:
        """Return what a stage that was trained on `tokens` has cost.

        Seconds, CPU seconds of all processes and peak memory of this one are those since its last start. For a
        resumed stage they cover only the time since it resumed, so no rate is computed.
        """
        cpu = processes.total(time.process_time() - self._cpu)
        unit = 1 if sys.platform == "darwin" else 1024
        cost = {
            "processes": processes.count(),
            "seconds": round(time.perf_counter() - self._wall, 2),
            "cpu_seconds": round(cpu, 2),
            "tokens": tokens,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        }
        if torch.cuda.is_available():
            cost["peak_gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
        return cost if resumed_from or not cpu else cost | {"tokens_per_cpu_second": round(tokens / cpu, 1)}
