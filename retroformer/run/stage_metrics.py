"""Metrics of a finished training stage, in metrics.json beside its adapter, for train and for eval."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from retroformer.config.experiment import Experiment
from retroformer.errors import ConfigError, DamagedFile, MissingInput, ProvenanceError
from retroformer.files.bounded import MIB, read_bytes
from retroformer.run.adapter_names import training_command
from retroformer.run.provenance import folder_sha256

METRICS = "metrics.json"
_LONGEST_BYTES = 256 * MIB


class TrainingTasks(BaseModel):
    """Tasks of one environment whose attempts an adapter was trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str
    seed: int | None
    """Seed of the experiment if it decides what these tasks are, as for generated games."""
    tasks: tuple[str, ...]
    """Ids, sorted."""

    def are_of(self, experiment: Experiment) -> bool:
        """Return True if an id stands for the same task in this training and in the experiment."""
        return (self.environment, self.seed) == _identity(experiment)


def training_tasks(experiment: Experiment, tasks: Iterable[str]) -> TrainingTasks:
    """Return these tasks of an experiment as training tasks."""
    environment, seed = _identity(experiment)
    return TrainingTasks(environment=environment, seed=seed, tasks=tuple(sorted(set(tasks))))


def _identity(experiment: Experiment) -> tuple[str, int | None]:
    """Return the environment's name, and the seed if task ids stand for other tasks under another seed."""
    section = experiment.environment
    return section.name, experiment.seed if section.seeded_tasks else None


class StageMetrics(BaseModel):
    """Inputs of a stage, its cost, and its measures. Stages may add measures of their own."""

    model_config = ConfigDict(frozen=True, extra="allow")

    stage: str = ""
    fingerprint: str = ""
    """Sha256 of everything that determines the weights."""
    inputs: dict[str, Any] = {}
    """What the fingerprint is computed from: hashes of base, data and adapters, and settings."""
    adapter_sha256: str | None = None
    samples: int | None = None
    """Training texts of imitation."""
    pairs: int | None = None
    """Training pairs of the reward model and of DPO."""
    prompts: int | None = None
    """Training prompts of PPO and GRPO."""
    training_domains: tuple[TrainingTasks, ...] | None = None
    """Tasks whose attempts the stage or the adapters it starts from were trained on, by environment; None if those of
    an adapter are unknown."""
    rounds: tuple[int, ...] | None = None
    """Rounds of collection whose ratings the stage read; None if that is not recorded."""
    steps: int | None = None
    """Optimiser steps of a stage on recorded data."""
    updates: int | None = None
    """Updates of the policy by PPO, GRPO and SAC."""
    episodes: int | None = None
    """Episodes that SAC played."""
    env_steps: int | None = None
    """Steps of the environment in these episodes."""
    resumed_from_step: int = 0
    resumed_from_update: int = 0
    resumed_from_episode: int = 0
    tokens: int = 0
    """Tokens trained on."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Seconds of all processes, like `seconds` since the stage was last started."""
    peak_memory_bytes: int = 0
    losses: tuple[float, ...] = ()
    """Loss of each step."""
    history: tuple[dict[str, Any], ...] = ()
    """Measures of each update by name, such as `score` and `kl`."""
    held_out_pairs: int = 0
    held_out_accuracy: float = 0.0
    """Share of held-out pairs in which the better reflection scores higher."""
    train_score_mean: float | None = None
    train_score_deviation: float | None = None
    """Mean and standard deviation of a reward model's scores on its training texts."""

    @property
    def whole_cpu_seconds(self) -> float | None:
        """CPU seconds of the stage; None if it was resumed, since only those after that were measured."""
        resumed = self.resumed_from_step or self.resumed_from_update or self.resumed_from_episode
        return None if resumed else self.cpu_seconds

    def measure(self, name: str) -> Any:
        """Return a measure by its name in the file, or None if the stage did not write it."""
        return getattr(self, name) if name in self.model_fields_set else None


def first_and_last(values: Sequence[float], most: int = 5) -> tuple[float, float] | None:
    """Return the means of the first and of the last `most` values, or of half of fewer; None without two values.

    Values of single batches are noisy.
    """
    size = min(most, len(values) // 2)
    return (fmean(values[:size]), fmean(values[-size:])) if size else None


def read_metrics(folder: Path) -> StageMetrics:
    """Read the metrics of the stage whose adapter is in `folder`. Raises MissingInput, DamagedFile."""
    path = folder / METRICS
    try:
        return StageMetrics.model_validate_json(read_bytes(path, _LONGEST_BYTES))
    except MissingInput:
        raise  # It is too large, or no regular file.
    except FileNotFoundError:
        raise MissingInput(f"No {path}: {replacement_hint(folder)}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "the whole file"
        raise DamagedFile(f"{path} is damaged ({where}: {fault['msg']}): {replacement_hint(folder)}") from None


def require_as_trained(folder: Path, base_sha256: str) -> str:
    """Return the hash of the adapter in `folder`.

    Raises ConfigError if its metrics record that it was trained on another base model, and ProvenanceError if they
    record another hash.
    """
    metrics = read_metrics(folder) if (folder / METRICS).is_file() else StageMetrics()
    trained = metrics.inputs.get("base")
    if trained not in (None, base_sha256):
        raise ConfigError(
            f"The adapter in {folder} was trained on a base model with sha256 {str(trained)[:12]}, and "
            f"train.base_model has {base_sha256[:12]}: set train.base_model to that model, or train the adapter again."
        )
    return require_unchanged(folder, metrics)


def require_unchanged(folder: Path, metrics: StageMetrics) -> str:
    """Return the hash of the adapter in `folder`. Raises ProvenanceError if its metrics record another one."""
    recorded, sha256 = metrics.adapter_sha256, folder_sha256(folder)
    if recorded not in (None, sha256):
        raise ProvenanceError(
            f"The adapter of {folder} has sha256 {sha256[:12]}, but had {str(recorded)[:12]} after training: "
            f"{replacement_hint(folder)}"
        )
    return sha256


def replacement_hint(folder: Path) -> str:
    """Return the end of an error message: how to get the files of a stage's folder again."""
    return f"put the folder back from a copy, or delete {folder} and train it again by {training_command(folder.name)}."
