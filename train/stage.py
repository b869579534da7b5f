"""What every training stage does around its training: is there anything to do, where to write, what it cost.

A stage's fingerprint is the sha256 over everything that determines its result: the base model, the settings of the
stage, the data, and the adapters that it starts from. The rule:

- The stage's folder holds this fingerprint: the stage is done, and running it again does nothing.
- It holds another one, or nothing: the stage runs, and replaces the folder in one rename at its end.
- Checkpoints are kept under the fingerprint, so a killed stage goes on only where its inputs are the same.
"""

import hashlib
import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from retroformer import durable
from retroformer.config import Experiment
from retroformer.embedded_model import base_model_folder
from retroformer.errors import ConfigError
from retroformer.provenance import code_version, folder_sha256, package_versions
from retroformer.train_sections import Optimizer
from train import processes
from train.card import CARD, adapter_card
from train.disk import writing_to
from train.sound import METRICS, read_metrics, require_finite_weights, require_sound_adapter

CONFIG = "config.yaml"


class Stage(NamedTuple):
    """One stage of an experiment with its inputs, before it runs."""

    name: str
    experiment: Experiment
    inputs: dict[str, Any]
    """All that determines the result, in JSON's types."""

    @property
    def folder(self) -> Path:
        """Where the finished adapter is."""
        return self.experiment.stage_folder(self.name)

    @property
    def fingerprint(self) -> str:
        """The sha256 of the inputs."""
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()

    @property
    def checkpoints(self) -> Path:
        """Where a killed run left what it had."""
        return self.experiment.folder / "checkpoints" / f"{self.name}-{self.fingerprint[:12]}"

    @property
    def logs(self) -> Path:
        """Where the trackers write."""
        return self.experiment.folder / "logs" / self.folder.name


_WITHOUT_EFFECT_ON_WEIGHTS = {"generation": {"base_url", "api_key_env", "timeout_seconds", "tolerance"}}
"""What a page says of a server and no result depends on. At another port the stage is still the same, and so it is
with a greater tolerance after the smaller one has ended it: its checkpoints are gone on from."""


def make_stage(
    name: str, experiment: Experiment, optimizer: Optimizer, data: Iterable[Any], adapters: dict[str, Path]
) -> Stage:
    """The stage `name` on `data` (texts, in JSON's types), starting from `adapters` by their roles.

    Raises:
        ConfigError: the batch cannot be put together from micro-batches, or these not be dealt among processes.
    """
    if optimizer.batch_size % optimizer.micro_batch_size:
        raise ConfigError(
            f"train.{name}.batch_size={optimizer.batch_size} is no multiple of "
            f"train.{name}.micro_batch_size={optimizer.micro_batch_size}: change one of them."
        )
    if optimizer.batch_size // optimizer.micro_batch_size % processes.count():
        raise ConfigError(
            f"{processes.count()} processes cannot share train.{name}.batch_size={optimizer.batch_size} evenly in "
            f"micro-batches of train.{name}.micro_batch_size={optimizer.micro_batch_size}: make the batch a multiple "
            f"of {optimizer.micro_batch_size * processes.count()}, or the micro-batches smaller."
        )
    page = experiment.train
    inputs = {
        "base": folder_sha256(base_model_folder(page.base_model)),
        "quantization": page.quantization,
        "dtype": page.dtype,
        "lora": page.lora.model_dump(),
        "max_length": page.max_length,
        "max_new_tokens": experiment.reflector.max_new_tokens if name in ("ppo", "grpo") else None,
        "optimizer": optimizer.model_dump(exclude=_WITHOUT_EFFECT_ON_WEIGHTS),
        "seed": experiment.seed,
        "data": _sha256_of_json(data),
        "adapters": {role: folder_sha256(folder) for role, folder in adapters.items()},
    }
    return Stage(name, experiment, inputs)


def _sha256_of_json(data: Iterable[Any]) -> str:
    """The sha256 of `json.dumps` of a list, of which one entry is in memory."""
    digest = hashlib.sha256(b"[")
    for number, entry in enumerate(data):
        digest.update(f"{', ' if number else ''}{json.dumps(entry)}".encode())
    digest.update(b"]")
    return digest.hexdigest()


def finished(stage: Stage) -> dict[str, Any] | None:
    """The metrics of the stage where it is done with these inputs.

    Raises:
        DamagedFile, NotFinite, ProvenanceError: it was done, and its adapter or its metrics are not what it wrote.
    """
    path = stage.folder / METRICS
    if not path.is_file():
        return None
    metrics = read_metrics(path)
    if metrics.get("fingerprint") != stage.fingerprint:
        return None
    require_sound_adapter(stage.folder, metrics)
    return metrics


def publish(stage: Stage, write: Callable[[Path], None], metrics: dict[str, Any]) -> None:
    """Let `write` fill a folder, add metrics, the page and a card, and put it in the stage's place in one rename.

    Of several processes the main one does.

    Raises:
        NotFinite: a weight is infinite or not a number.
    """
    if not processes.is_main():
        return
    page = stage.experiment.train
    with replacing(stage.folder) as unfinished:
        write(unfinished)
        require_finite_weights(unfinished, "after training: nothing was published, and the checkpoints are kept.")
        _make_repeatable(unfinished / "adapter_config.json", page.base_model)
        (unfinished / CONFIG).write_text(yaml.safe_dump(stage.experiment.model_dump(mode="json"), sort_keys=False))
        facts = {
            "stage": stage.name,
            "fingerprint": stage.fingerprint,
            "inputs": stage.inputs,
            **metrics,
            "adapter_sha256": folder_sha256(unfinished),
            "code": code_version().model_dump(),
            "versions": package_versions(),
        }
        (unfinished / METRICS).write_text(json.dumps(facts, indent=2) + "\n")
        # In place of peft's empty form.
        card = adapter_card(stage.experiment, base_model_folder(page.base_model), facts)
        (unfinished / CARD).write_text(card, encoding="utf-8")
    _delete_in_one_rename(stage.checkpoints)


def _delete_in_one_rename(folder: Path) -> None:
    """A run that dies within leaves all of `folder` or none: half of the checkpoints must not be gone on from."""
    deleted = folder.with_name(f".{folder.name}.deleted")
    shutil.rmtree(deleted, ignore_errors=True)
    if folder.exists():
        folder.rename(deleted)
        # Or a power cut could undo the rename and keep some of the deletions.
        durable.sync_entries(folder.parent)
        shutil.rmtree(deleted, ignore_errors=True)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes the place of `folder` in one rename when that is done.

    A run that dies within, or a machine, leaves the old folder, or none; never half of the new one.
    """
    unfinished, replaced = (folder.with_name(f".{folder.name}.{state}") for state in ("unfinished", "replaced"))
    for leftover in (unfinished, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        with writing_to(unfinished):
            yield unfinished
        if folder.exists():
            folder.rename(replaced)
        with writing_to(unfinished):
            durable.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def _make_repeatable(adapter_config: Path, base: str) -> None:
    """Write what changes from machine to machine, and from process to process, as it is everywhere.

    Where the base lies, and the order in which peft writes a set, would change the adapter's hash.
    """
    settings = json.loads(adapter_config.read_text())
    settings["base_model_name_or_path"] = base
    settings["target_modules"] = sorted(settings["target_modules"])
    adapter_config.write_text(json.dumps(settings, indent=2) + "\n")


class Meter:
    """Counts what is spent from now on."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self, tokens: int) -> dict[str, float]:
        """Seconds, CPU seconds of all processes and peak memory of this one; `tokens` are those trained on."""
        cpu = processes.total(time.process_time() - self._cpu)
        unit = 1 if sys.platform == "darwin" else 1024
        return {
            "processes": processes.count(),
            "seconds": round(time.perf_counter() - self._wall, 2),
            "cpu_seconds": round(cpu, 2),
            "tokens": tokens,
            "tokens_per_cpu_second": round(tokens / cpu, 1) if cpu else 0.0,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        }
