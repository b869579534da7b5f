"""Pushes the adapter of a stage, or the ratings of a run, in one flat folder with a manifest, and pulls them.

Only files named here leave the machine: never the store, never a file outside the run's folder, no key or password.
A pull copies and verifies everything first, then puts it in its place in one step.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, StringConstraints, ValidationError, model_validator

from retroformer.cases.export_cases import export_cases
from retroformer.cases.import_cases import import_cases
from retroformer.config.experiment import Experiment
from retroformer.config.file import load, load_domains
from retroformer.endpoint.secrets.redaction import redact
from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.files import durable
from retroformer.files.bounded import KIB, first_fault, sha256
from retroformer.integrations.remote.places import MANIFEST, Place
from retroformer.method.records import Record
from retroformer.run.adapter_names import FOLDER_NAME, STAGES, training_command
from retroformer.run.adapters import has_adapter
from retroformer.run.provenance import ADAPTER_FILES
from retroformer.run.stage_metrics import METRICS, StageMetrics, read_metrics, require_unchanged

MANIFEST_BYTES = 1 << 20
"""Largest size of a manifest."""
CARD, CONFIG, CASES = "README.md", "config.yaml", "cases.parquet"

FileName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*\.(json|jsonl|md|parquet|safetensors|yaml)$")
]
"""A file beside the manifest, in a format that holds data alone: no path, no pickle, no code."""


class FileDigest(Record):
    """Size and hash of a file."""

    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

    @classmethod
    def of(cls, path: Path) -> Self:
        return cls(bytes=path.stat().st_size, sha256=sha256(path).hexdigest())


class Manifest(Record):
    """Content of `retroformer.json`, which is written last and read first."""

    format: Literal[1] = 1
    kind: Literal["adapter", "ratings"]
    name: str
    """For an adapter its folder below runs/RUN, such as `sft`, `sft-2` or `sft-rated`; for ratings the run."""
    files: dict[FileName, FileDigest]

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        needed = ADAPTER_FILES if self.kind == "adapter" else (CASES,)
        if missing := [name for name in needed if name not in self.files]:
            raise ValueError(f"{missing[0]} is not listed")
        if self.kind == "adapter" and not FOLDER_NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a stage's adapter")
        return self

    @classmethod
    def read(cls, path: Path, address: str) -> Self:
        """Parse the manifest that was copied from an address. Raises DamagedFile."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise DamagedFile(
                f"{MANIFEST} at {address} is refused ({first_fault(error)}): push again with `retroformer push`, and "
                "pull only from addresses that you trust."
            ) from None

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def require_sound(self, folder: Path, address: str) -> None:
        """Compare the files in a folder with the manifest. Raises DamagedFile."""
        for name, expected in self.files.items():
            actual = FileDigest.of(folder / name) if (folder / name).is_file() else None
            if actual != expected:
                state = "is missing" if actual is None else f"({actual.bytes} bytes) is not as it was pushed"
                raise DamagedFile(f"{name} at {address} {state}: run the command again, or push again.")


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
    kind: Literal["adapter", "ratings"] = "ratings" if stage is None else "adapter"
    place = Place(address, kind, private=private)
    with TemporaryDirectory(prefix="retroformer-push-") as scratch:
        folder = Path(scratch)
        name = _gather_ratings(experiment, folder) if stage is None else _gather_adapter(experiment, stage, folder)
        files = {path.name: FileDigest.of(path) for path in sorted(folder.iterdir())}
        Manifest(kind=kind, name=name, files=files).write(folder)
        what = f"{'the ratings of run' if stage is None else f'the adapter {name} of run'} {experiment.name}"
        place.upload(folder, f"Push {what}")
    total = sum(file.bytes for file in files.values()) / KIB
    return (
        f"pushed {what} to {place.address} ({len(files) + 1} files, {total:,.0f} KiB). To copy them: "
        f"`retroformer pull {place.address}`"
    )


def _gather_adapter(experiment: Experiment, stage: str, target: Path) -> str:
    """Copy the files of the adapter of a stage; return its name. Raises MissingInput, DamagedFile, ProvenanceError."""
    folder = experiment.stage_folder(stage)
    if not has_adapter(folder):
        raise MissingInput(f"No adapter in {folder}: train it with {training_command(stage)} first.")
    require_unchanged(folder, read_metrics(folder))
    for name in (*ADAPTER_FILES, CARD):
        if (folder / name).exists():
            shutil.copy(_own_file(folder, name), target)
    measures = json.loads((folder / METRICS).read_text(encoding="utf-8"))
    # Texts among the measures of a stage are left out, since one could be a path of this machine.
    public = {n: v for n, v in measures.items() if n in StageMetrics.model_fields or not isinstance(v, str)}
    (target / METRICS).write_text(redact(json.dumps(public, indent=2)), encoding="utf-8")
    _write_config(target, yaml.safe_load(_own_file(folder, CONFIG).read_text(encoding="utf-8")))
    return folder.name


def _gather_ratings(experiment: Experiment, target: Path) -> str:
    """Export the facts of a run with a card; return its name. Raises MissingInput, ConfigError, StoreError."""
    count = export_cases(experiment, target / CASES, exact=True).partition(" are in ")[0]
    header = yaml.safe_dump({"tags": ["retroformer"], "configs": [{"config_name": "cases", "data_files": CASES}]})
    card = (
        f"---\n{header}---\n\n# Ratings of run {experiment.run}\n\n{count}, made by Retroformer in the environment "
        f"`{experiment.environment.name}`. A case is a row of `{CASES}`: the attempt, the advice on it, the retry that "
        "read the advice, the rating, and in `origin` the arm and the conditions. `retroformer pull ADDRESS CONFIG` "
        "adds them to the store of a run with the settings of `config.yaml`.\n"
    )
    (target / CARD).write_text(card, encoding="utf-8")
    _write_config(target, experiment.as_file())
    return experiment.run


def _own_file(folder: Path, name: str) -> Path:
    """Return the path of a file that lies in this folder. Raises ConfigError for a link that leads out of it."""
    path = folder / name
    if path.resolve().parent != folder.resolve():
        raise ConfigError(f"{path} is a link to a file outside its folder, which is not pushed: put the file there.")
    return path


def _write_config(target: Path, config: Mapping[str, Any]) -> None:
    """Write a config without the store's address, which is of no use elsewhere, and without credentials."""
    own = {key: value for key, value in config.items() if key != "store"}
    (target / CONFIG).write_text(redact(yaml.safe_dump(own, sort_keys=False)), encoding="utf-8")


def pull_to(address: str, target: Path | None, *, if_pushed: bool = False) -> str:
    """Copy an adapter or ratings to a folder, or to the run of a config. Return a sentence that says where they are.

    Raises:
        ConfigError: the address or the config is wrong, or the folder holds other files.
        MissingInput: nothing was pushed to the address and `if_pushed` is False, or a package is missing.
        DamagedFile: a file is not as it was pushed.
        RemoteError: the address cannot be read.
    """
    place = Place(address)
    with TemporaryDirectory(prefix="retroformer-pull-") as scratch:
        copy = Path(scratch) / MANIFEST
        try:
            place.pin()
            place.download(MANIFEST, copy, MANIFEST_BYTES)
        except MissingInput:
            if if_pushed:
                return f"nothing was pushed to {place.address}"
            raise
        manifest = Manifest.read(copy, place.address)
        if target is not None and (target.suffix in (".yaml", ".yml") or target.is_file()):
            return _pull_to_run(place, manifest, target, Path(scratch))
    folder = target or Path(place.name or "pulled")
    _copy(place, manifest, folder)
    if manifest.kind == "ratings":
        return (
            f"the ratings of run {manifest.name} are in {folder}: `retroformer import EXPERIMENT.yaml "
            f"{folder / CASES}` adds them to a run"
        )
    return (
        f"the adapter {manifest.name} is in {folder}: `serve.adapters: {{{manifest.name}: {folder}}}` in a config "
        "serves it"
    )


def _pull_to_run(place: Place, manifest: Manifest, config: Path, scratch: Path) -> str:
    if manifest.kind == "ratings":
        _copy(place, manifest, scratch / "ratings")
        return import_cases(load(config), scratch / "ratings" / CASES)
    folder = load_domains(config)[0].folder / manifest.name
    _copy(place, manifest, folder)
    return f"the adapter {manifest.name} is in {folder}: serve and eval of {config} find it as {manifest.name!r}"


def _copy(place: Place, manifest: Manifest, folder: Path) -> None:
    """Copy all files to a new folder, which appears complete or not at all.

    Raises ConfigError if the folder holds other files; DamagedFile, RemoteError.
    """
    if folder.name in ("", ".."):
        raise ConfigError(
            f"A pull makes a folder of its own, and {folder} is none: name one, such as {folder / 'advice'}."
        )
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        with suppress(DamagedFile, OSError):
            if Manifest.read(folder / MANIFEST, place.address) == manifest:
                manifest.require_sound(folder, place.address)
                return
        raise ConfigError(
            f"{folder} already holds other files than those at {place.address}: move it away, or pull into another "
            "folder."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{folder.parent} is no folder: pull into another one.") from None
    with TemporaryDirectory(prefix=f".{folder.name}.", suffix=".pulling", dir=folder.parent) as scratch:
        unfinished = Path(scratch) / folder.name
        unfinished.mkdir()
        for name, expected in manifest.files.items():
            with suppress(MissingInput):
                place.download(name, unfinished / name, expected.bytes)
        manifest.require_sound(unfinished, place.address)
        manifest.write(unfinished)
        durable.publish(unfinished, folder)
