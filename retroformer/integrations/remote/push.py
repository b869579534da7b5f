"""Pushes the adapter of a stage, or the ratings of a run.

Only files named here leave the machine: never the store, never a file outside the run's folder, no key or password.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from retroformer.cases.case import Case
from retroformer.cases.files import write_cases
from retroformer.cases.stored import exported_arms, stored_cases
from retroformer.errors import ConfigError, MissingInput, ProvenanceError
from retroformer.experiment.adapters import ACTORS, ADVISERS, REWARD, has_adapter
from retroformer.experiment.config import Experiment
from retroformer.experiment.file import load, load_domains
from retroformer.experiment.storage import open_store
from retroformer.files.bounded_file import size
from retroformer.parquet import export_run
from retroformer.provenance import ADAPTER_FILES, folder_sha256
from retroformer.secrets.redaction import redacted, redacted_data
from retroformer.stage_metrics import METRICS, StageMetrics, how_to_replace, read_metrics

from .address import open_remote
from .contents import MANIFEST, RATINGS_FILES, Contents

CARD, CONFIG, CASES = "README.md", "config.yaml", "cases.parquet"
STAGES = (*ADVISERS, REWARD, *ACTORS)


def push_run(path: Path, overrides: Sequence[str], address: str, stage: str | None, *, private: bool = False) -> str:
    """Push the adapter of a stage, or without a stage the ratings. Return a sentence that says how to pull them.

    Raises:
        ConfigError: the config, the stage or the address is wrong.
        MissingInput: there is nothing to push, or a package is missing.
        ProvenanceError: the adapter was changed after training.
        RemoteError: the address cannot be written.
    """
    if stage is not None and stage not in STAGES:
        raise ConfigError(f"--stage {stage}: no stage has this name; choose from {', '.join(STAGES)}.")
    experiment = load(path, overrides) if stage is None else load_domains(path, overrides)[0]
    remote = open_remote(address, "ratings" if stage is None else "adapter", private=private)
    with TemporaryDirectory(prefix="retroformer-push-") as scratch:
        contents = _ratings(experiment, Path(scratch)) if stage is None else _adapter(experiment, stage, Path(scratch))
        manifest = contents.manifest()
        listed = Path(scratch) / MANIFEST
        listed.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        what = f"{'the ratings of run' if stage is None else f'the adapter {contents.name} of run'} {experiment.name}"
        remote.write({**contents.files, MANIFEST: listed}, f"Push {what}")
    total = sum(facts.bytes for facts in manifest.files.values())
    return (
        f"pushed {what} to {remote.address} ({len(manifest.files) + 1} files, {_rounded(total)}). To copy "
        f"them: `retroformer pull {remote.address}`"
    )


def _adapter(experiment: Experiment, stage: str, scratch: Path) -> Contents:
    """Return the files of the adapter of a stage. Raises MissingInput, DamagedFile, ProvenanceError."""
    folder = experiment.stage_folder(stage)
    if not has_adapter(folder):
        raise MissingInput(f"No adapter in {folder}: train it with `retroformer train {stage} EXPERIMENT.yaml` first.")
    metrics = read_metrics(folder)
    if metrics.adapter_sha256 is not None and metrics.adapter_sha256 != folder_sha256(folder):
        raise ProvenanceError(f"The adapter in {folder} was changed after training: {how_to_replace(folder)}")
    files = {name: _own_file(folder, name) for name in (*ADAPTER_FILES, CARD) if (folder / name).exists()}
    public = {name: value for name, value in _json(folder / METRICS).items() if _is_public(name, value)}
    config = yaml.safe_load(_own_file(folder, CONFIG).read_text(encoding="utf-8"))
    files[METRICS] = _written(scratch / METRICS, redacted(json.dumps(public, indent=2)))
    files[CONFIG] = _written(scratch / CONFIG, _without_secrets(config))
    return Contents("adapter", folder.name, files)


def _ratings(experiment: Experiment, scratch: Path) -> Contents:
    """Export the facts of a run. Raises MissingInput, ConfigError, StoreError."""
    counts = export_run(experiment, scratch).partition(" are in ")[0]
    tables = [*RATINGS_FILES, *([CASES] if _wrote_cases(experiment, scratch / CASES) else [])]
    card = _written(scratch / CARD, _ratings_card(experiment, counts, tables))
    config = _written(scratch / CONFIG, _without_secrets(experiment.as_file()))
    files = {name: scratch / name for name in tables} | {CARD: card, CONFIG: config}
    return Contents("ratings", experiment.run, files)


def _wrote_cases(experiment: Experiment, path: Path) -> bool:
    """Write the cases of a run for other programs. Return False if it has none, or returns that are no scores."""
    with closing(open_store(experiment)) as store:
        cases = (case for arm in exported_arms(store) for case in stored_cases(store, arm))
        try:
            # Stores of earlier versions may hold a key that a task or model has shown.
            return write_cases(path, (_redacted(case) for case in cases)) > 0
        except ConfigError:
            return False


def _redacted(case: Case) -> Case:
    return Case.model_validate_json(redacted_data(case.model_dump_json()))


def _own_file(folder: Path, name: str) -> Path:
    """Return the path of a file that lies in this folder. Raises ConfigError for a link that leads out of it."""
    path = folder / name
    if path.resolve().parent != folder.resolve():
        raise ConfigError(f"{path} is a link to a file outside its folder, which is not pushed: put the file there.")
    return path


def _json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _is_public(name: str, value: Any) -> bool:
    """Return False for texts among the measures of a stage, since one could be a path of this machine."""
    return name in StageMetrics.model_fields or not isinstance(value, str)


def _without_secrets(config: Mapping[str, Any]) -> str:
    """Return a config as YAML without the store's address, which is of no use elsewhere, and without credentials."""
    own = {key: value for key, value in config.items() if key != "store"}
    return redacted(yaml.safe_dump(own, sort_keys=False))


def _ratings_card(experiment: Experiment, counts: str, tables: Sequence[str]) -> str:
    """Write the card of a data set, with the header that a hub reads."""
    files = [{"config_name": name.partition(".")[0], "data_files": name} for name in tables]
    header = yaml.safe_dump({"tags": ["retroformer"], "configs": files}, sort_keys=False)
    return (
        f"---\n{header}---\n\n# Ratings of run {experiment.run}\n\n{counts}, made by Retroformer in the environment "
        f"`{experiment.environment.name}`. `cases.parquet`, if present, has one row per case: the attempt, the "
        "advice on it, the retry that read the advice, and the rating. The other files hold one fact per row, as JSON "
        "in the column `record`. `retroformer pull ADDRESS CONFIG` adds "
        "them to the store of a run with the settings of `config.yaml`.\n"
    )


def _written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def _rounded(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count >= 1 << 20 else size(count // 1024 * 1024 or count)
