"""What a run serves: the names of its adapters, and the adapter that is its first reflector."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import adapter_name
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Record
from retroformer.models.precision import Dtype, Quantization
from retroformer.run.adapter_names import ACTORS, ADVISERS, REFLECTOR
from retroformer.run.adapters import (
    adapter_folder,
    best_of_names,
    finished_advisers,
    has_adapter,
    reward_folder,
)
from retroformer.run.promotions import History, name_of
from retroformer.run.provenance import ADAPTER_WEIGHTS, folder_sha256
from retroformer.run.stage_metrics import METRICS, StageMetrics, read_metrics

logger = logging.getLogger(__name__)

RESERVED_CHARACTERS = frozenset("@+= ")
"""Characters with a meaning in model names."""


class ServedNames(Record):
    """Adapter folders by name, and aliases of these names."""

    adapters: dict[str, Path]
    aliases: dict[str, str]
    best_of: dict[str, Path]
    """Folders of reward models by names such as `sft+best8`."""
    quantization: Quantization
    """Quantisation of the base."""


class VllmAddresses(Record):
    """vLLM servers that answer for a worker."""

    urls: tuple[str, ...]
    """Their addresses without /v1."""
    key: str


class WorkerSettings(Record):
    """What a worker process serves, and to whom."""

    names: ServedNames
    base_model: str
    dtype: Dtype | Literal["auto"]
    chat_template_kwargs: dict[str, JsonValue]
    threads: int
    gpu_share: float
    promotions: Path | None
    """Folder of the run whose promoted reflector is served."""
    follow: bool
    """True if later promotions are served, too."""
    hand_over: bool
    loopback: bool
    """True if only this machine can reach the server."""
    api_keys: tuple[str, ...]
    """API keys that clients may use; empty if the endpoint requires none."""
    vllm: VllmAddresses | None = None
    """Servers that hold the models; None: the worker holds them itself."""
    controller: str | None = None
    """Address of a FastChat controller to register at."""
    address: str = ""
    """Address under which the worker registers."""


def served_names(experiment: Experiment) -> ServedNames:
    """Return the names served beside `base`: finished stages, actors, `serve.adapters`, `reflector`, best-of names.

    `reflector` is the last finished stage until a promotion is recorded. Names such as `sft+best8` in the config are
    served if their adapter and reward model exist.

    Raises:
        MissingInput: a folder of `serve.adapters` has no adapter.
        ConfigError: a name of `serve.adapters` is reserved, or an adapter was trained on prompts that this server would
            not write, or adapters were trained on different weights.
    """
    advisers, here = finished_advisers(experiment), experiment.train.chat_template_kwargs
    actors = [name for name in ACTORS if has_adapter(experiment.folder / name)]
    adapters = {name: experiment.folder / name for name in (*actors, *advisers)}
    aliases = {REFLECTOR: advisers[-1]} if advisers else {}
    for name, location in experiment.serve.adapters.items():
        folder = adapter_folder(location)
        if name == "base" or not name or set(name) & RESERVED_CHARACTERS:
            raise ConfigError(f"serve.adapters.{name}: {name!r} cannot name an adapter; take another word.")
        if not has_adapter(folder):
            raise MissingInput(
                f"No adapter {name!r} in {str(folder)!r}: expected a folder with {ADAPTER_WEIGHTS} and "
                "adapter_config.json, as `retroformer train` writes."
            )
        adapters[name] = folder
        aliases.pop(name, None)
    rewards = _best_of(experiment, adapters, aliases)
    metrics = {
        name: read_metrics(folder) for name, folder in (adapters | rewards).items() if (folder / METRICS).is_file()
    }
    for name, stage in metrics.items():
        trained = stage.inputs.get("chat_template_kwargs", {})
        if name in adapters and stage.stage in ADVISERS and trained != here:
            raise ConfigError(
                f"The adapter {name!r} in {str(adapters[name])!r} was trained with "
                f"train.chat_template_kwargs={trained}, and this config has {here}, so its prompts would have other "
                "tokens: set it to the former, or train the adapter again."
            )
    quantization = _quantization(metrics, experiment.train.quantization if experiment.serve.hand_over else "none")
    return ServedNames(adapters=adapters, aliases=aliases, best_of=rewards, quantization=quantization)


def _quantization(metrics: Mapping[str, StageMetrics], default: Quantization) -> Quantization:
    """Return the quantisation of the base, which all adapters share. Raises ConfigError if they need different ones.

    `default` is that of a base without trained adapters: adapters that a trainer hands over need the trainer's.
    """
    trained: dict[Quantization, str] = {
        kind: name for name, stage in metrics.items() if (kind := stage.inputs.get("quantization"))
    }
    if len(trained) > 1:
        raise ConfigError(
            f"The adapter {trained['nf4']!r} was trained on 4-bit weights and {trained['none']!r} was not, and one "
            "server has one base: serve them in different runs."
        )
    return "nf4" if "nf4" in trained else "none" if trained else default


def _best_of(experiment: Experiment, adapters: Mapping[str, Path], aliases: Mapping[str, str]) -> dict[str, Path]:
    """Return the folders of reward models by the best-of names whose adapter and reward model exist."""
    reward_folders = {}
    for name in best_of_names(experiment):
        model = aliases.get(adapter_name(name), adapter_name(name))
        folder = reward_folder(experiment, model)
        if (model == "base" or model in adapters) and has_adapter(folder):
            reward_folders[name] = folder
    return reward_folders


def record_first_adapter(experiment: Experiment, config_path: Path) -> None:
    """Record the last finished stage as the run's reflector if nothing is recorded, with a warning.

    If something is, warn about the last finished stage unless it was the reflector once. Raises ConfigError if another
    server has recorded a first adapter in the meantime, DamagedFile if a record is damaged.
    """
    advisers = finished_advisers(experiment)
    if REFLECTOR in experiment.serve.adapters or not advisers:
        return
    history, name = History(experiment.folder), advisers[-1]
    records = history.records()
    test = f"`retroformer promote {config_path} {name}"
    if not records:
        first = history.keep(name, experiment.folder / name)
        history.append(records, "first", first, "nothing was served before")
        logger.warning(
            "reflector is %s, which has not been tested: %s --against none` tests it against no advice.", name, test
        )
        return
    sha256 = folder_sha256(experiment.folder / name)
    if all(record.adapter is None or record.adapter.sha256 != sha256 for record in records):
        current = name_of(history.current())
        logger.warning("reflector stays %s: %s` tests the newer adapter, and serves it if it is better.", current, test)
