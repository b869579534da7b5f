"""Chapters on the configs of the training stages, compared with that of the evaluation, and on its origin."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from textwrap import shorten
from typing import Any

import yaml

from retroformer.document import DASH, Cell, Chapter, Folded, Part, Row, Words, chapter, code, number, table
from retroformer.errors import MissingInput
from retroformer.experiment.config import Experiment
from retroformer.files.bounded import read_yaml
from retroformer.provenance import code_version, package_versions
from retroformer.stage_metrics import METRICS

from .evaluation import Evaluated
from .training import TrainedAdapter, in_order, trained_adapters, written_in

_FILE = "config.yaml"
_VALUE_SHOWN = 120
"""Most characters shown of a value; the whole config has all."""
_NOTE = (
    "The config that each stage stored beside its adapter, and the settings that its weights depend on. Sections that "
    "training does not read, ",
    code("eval"),
    " and ",
    code("gate"),
    ", are not compared.",
)
_NOT_COMPARED = ("eval.", "gate.")


def stage_configs(evaluated: Evaluated) -> Iterator[Chapter]:
    """Yield the settings of each stage, the keys on which configs differ, and each config once, if a stage ran.

    The stages are those of the report's models, and the other finished ones of the run.
    """
    experiment = evaluated.experiment
    trained = trained_adapters(experiment, evaluated.models)
    finished = written_in([path.parent for path in experiment.folder.glob(f"*/{METRICS}")])
    stages = {adapter.folder.resolve(): adapter for adapter in in_order([*finished, *trained])}
    if not stages:
        return
    configs = {folder: _config(folder / _FILE) for folder in stages}
    named = _named([config for config in configs.values() if config])
    names = {
        folder: next((name for name, config in named.items() if config == configs[folder]), DASH) for folder in stages
    }
    rows = [_row(adapter, names[folder]) for folder, adapter in stages.items()]
    header = ["stage", "adapter", "config", "seed", "settings", "commit"]
    folded = [
        _folded(config, f"Config {name}: {', '.join(titles)}")
        for name, config in named.items()
        for titles in (dict.fromkeys(stages[folder].title for folder in stages if names[folder] == name),)
    ]
    settings = table(header, rows, "The settings of each training stage.")
    yield chapter("What each stage ran with", _NOTE, settings, _differences(experiment, named), *folded)


def origin(evaluated: Evaluated) -> Iterator[Chapter]:
    """Yield the commit, the package versions and the resolved config."""
    version, experiment = code_version(), evaluated.experiment
    changed = " with uncommitted changes" if version.dirty else ""
    versions = ", ".join(f"{name} {number}" for name, number in package_versions().items())
    traced = f"{changed}. Versions: {versions}. Every number can be traced to the attempts stored in "
    sentence = ("Commit ", code(version.commit), traced, code(str(experiment.store_url)), ".")
    yield chapter("Where this comes from", sentence, _folded(experiment.as_file(), "The config of the evaluation"))


def _folded(config: Mapping[str, Any], title: str) -> Folded:
    return Folded(title=title, text=yaml.safe_dump(config, sort_keys=False, allow_unicode=True), language="yaml")


def _row(adapter: TrainedAdapter, config: str) -> Row:
    inputs, revision = adapter.metrics.inputs, adapter.metrics.measure("code") or {}
    given = {name: inputs.get(name) for name in ("quantization", "dtype", "max_length")}
    given |= {f"lora.{name}": value for name, value in inputs.get("lora", {}).items()}
    settings = {name: value for name, value in (inputs.get("optimizer", {}) | given).items() if value is not None}
    seed = inputs.get("seed", DASH)
    return [
        adapter.title,
        adapter.cell(),
        config,
        number(seed) if isinstance(seed, int) else _value(seed),
        ", ".join(f"{name} {_value(value)}" for name, value in settings.items()),
        str(revision.get("commit", DASH))[:12] + " with changes" * bool(revision.get("dirty")),
    ]


def _differences(experiment: Experiment, named: Mapping[str, Mapping[str, Any]]) -> Part | Words:
    """Return the keys on which the configs differ, with the value in each."""
    flat = {"evaluation": dict(_flat(experiment.as_file())), **{name: dict(_flat(named[name])) for name in named}}
    keys = dict.fromkeys(key for values in flat.values() for key in values if not key.startswith(_NOT_COMPARED))
    rows = [
        [
            Cell(words=(code(shorten(text, _VALUE_SHOWN) if place else text),))
            for place, text in enumerate((key, *values))
        ]
        for key in keys
        for values in ([_value(of_one.get(key, DASH)) for of_one in flat.values()],)
        if len(set(values)) > 1
    ]
    header = ["key", "evaluation", *(f"config {name}" for name in named)]
    caption = "Where the configs differ; a dash stands for a key that a config lacks."
    return table(header, rows, caption) if rows else "The stages ran with the config of the evaluation."


def _named(configs: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the different configs by a letter, or by a number beyond the alphabet."""
    different: list[Mapping[str, Any]] = []
    for config in configs:
        if config not in different:
            different.append(config)
    letters = (*ascii_uppercase, *map(str, range(len(different))))
    return dict(zip(letters, different, strict=False))


def _config(path: Path) -> Mapping[str, Any]:
    """Return a stored config as it was written; empty if it is missing or damaged."""
    try:
        config = read_yaml(path)
    except (OSError, MissingInput, yaml.YAMLError):
        return {}
    return config if isinstance(config, dict) else {}


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested sections by their dotted keys."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
