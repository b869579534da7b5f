"""What a worker serves under each name, and the adapters that clients hand over while it runs."""

import itertools
import os
import re
import stat
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import JsonValue

from retroformer.errors import MissingInput
from retroformer.experiment.sections.base import best_of
from retroformer.provenance import ADAPTER_WEIGHTS, Provenance, ServedModel, chat_template_sha256, folder_sha256

from .engine.engine import Engine
from .engine.model import BASE, Model
from .requests import RequestError
from .served_names import ServedNames

PINNED_DIGITS = 12
MAX_ADAPTERS = 8
"""Limit of handed-over adapters loaded at once: a trainer has one at a time, unless it was killed."""
ADAPTER_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""Allowed names of handed-over adapters. Training names its adapters after their folders, whose names are no longer."""
MAX_FOLDER_BYTES = 16 * 1024**3
"""Limit of the files in an adapter's folder, which is read whole. Rank 256 on all layers of a 70B model has 13 GB."""


class Target(NamedTuple):
    """The models behind a served name."""

    adapter: str
    """The engine's name of the adapter that writes."""
    answers: int = 1
    """Number of candidates to choose from."""
    reward: str = ""
    """The engine's name of the reward model that chooses; empty without a choice."""
    silent: bool = False
    """True if the answer is an empty text, as no adapter is promoted; nothing is computed."""


def served_targets(
    base: Path, names: ServedNames, template_settings: Mapping[str, JsonValue] | None = None
) -> tuple[dict[str, Target], dict[str, ServedModel]]:
    """Return target and provenance of every name: base, adapters, aliases, best-of names, each also as NAME@HASH."""
    base_sha256, template_sha256 = folder_sha256(base), chat_template_sha256(base, template_settings)
    targets = {"base": Target(BASE)} | {name: Target(f"adapter{number}") for number, name in enumerate(names.adapters)}
    hashes: dict[str, str | None] = {"base": None}
    hashes |= {name: folder_sha256(path) for name, path in names.adapters.items()}
    for alias, name in names.aliases.items():
        targets[alias], hashes[alias] = targets[name], hashes[name]
    models = {
        name: ServedModel(base_sha256=base_sha256, adapter_sha256=adapter_sha256, chat_template_sha256=template_sha256)
        for name, adapter_sha256 in hashes.items()
    }
    rewards = reward_names(names)
    for name, folder in names.best_of.items():
        parsed = best_of(name)
        assert parsed is not None, f"{name} is not a best-of name"
        targets[name] = targets[parsed.model]._replace(answers=parsed.answers, reward=rewards[folder])
        models[name] = models[parsed.model].model_copy(update={"reward_sha256": folder_sha256(folder)})
    for name, model in list(models.items()):
        pinned = f"{name}@{(model.trained_sha256 or base_sha256)[:PINNED_DIGITS]}"
        targets[pinned], models[pinned] = targets[name], model
    return targets, models


def reward_names(names: ServedNames) -> dict[Path, str]:
    """Return the engine's names of reward models by folder."""
    return {folder: f"reward{number}" for number, folder in enumerate(dict.fromkeys(names.best_of.values()))}


class ServedModels:
    """The served names, which may change from any thread while requests run."""

    def __init__(self, model: Model, engine: Engine, targets: Mapping[str, Target], provenance: Provenance) -> None:
        self._model, self._engine = model, engine
        self.targets, self.provenance = targets, provenance
        self.changing = threading.RLock()
        """Held while the served names are replaced."""
        self._handed_over: dict[str, str] = {}
        """The engine's names of handed-over adapters by the served names."""
        self._numbers = itertools.count()

    def load(self, folder: Path) -> str:
        """Load an adapter and return the engine's name of it. Raises MissingInput."""
        # A name that the engine never had: its prefix cache still has entries under earlier names.
        name = f"loaded{next(self._numbers)}"
        self._model.load_adapter(name, folder)
        return name

    def unload_if_unused(self, adapter: str) -> bool:
        """Unload an adapter, by the engine's name, unless requests for it are not finished; return True if it was."""
        if self._engine.works_on(adapter):
            return False
        self._model.unload_adapter(adapter)
        return True

    def replace(self, gone: Collection[str], targets: Mapping[str, Target], models: Mapping[str, ServedModel]) -> None:
        """Serve these targets in place of the names in `gone`, with the provenance of each."""
        with self.changing:
            kept = {name: old for name, old in self.provenance.models.items() if name not in gone}
            self.targets = {name: old for name, old in self.targets.items() if name not in gone} | dict(targets)
            self.provenance = self.provenance.model_copy(update={"models": kept | dict(models)})

    def hand_over(self, name: str, folder: Path) -> ServedModel:
        """Load the adapter in `folder`, serve it as `name`, and return its provenance.

        The hash in it is of the files as they were just before the weights were read.

        Raises:
            RequestError: the name is not free, too many adapters are loaded, or the adapter cannot be served.
        """
        if not ADAPTER_NAME.fullmatch(name):
            raise RequestError(400, f"The name {name[:300]!a} is not free: names match {ADAPTER_NAME.pattern}.")
        with self.changing:
            _require_readable(folder)
            if name in self._handed_over:
                loaded = self.provenance.models[name]
                if loaded.adapter_sha256 == folder_sha256(folder):
                    return loaded  # A retry: the client did not get the first response.
            if name in self.targets:
                raise RequestError(400, f"The name {name!r} is not free: take another one.")
            if len(self._handed_over) >= MAX_ADAPTERS:
                held = ", ".join(self._handed_over)
                raise RequestError(
                    400,
                    f"{MAX_ADAPTERS} adapters are loaded, which is the limit: unload one at /v1/unload_lora_adapter "
                    f"({held}).",
                )
            try:
                sha256 = folder_sha256(folder)
                self._handed_over[name] = adapter = self.load(folder)
            except MissingInput as error:
                raise RequestError(400, str(error)) from error
            served = self.provenance.models["base"].model_copy(update={"adapter_sha256": sha256})
            self.replace((), {name: Target(adapter)}, {name: served})
            return served

    def take_back(self, name: str) -> None:
        """Unload an adapter that a client has handed over.

        Raises:
            RequestError: there is no such adapter, or requests for it are not finished.
        """
        with self.changing:
            if name not in self._handed_over:
                raise RequestError(404, f"No adapter {name[:300]!a} was handed over.")
            if not self.unload_if_unused(self._handed_over[name]):
                raise RequestError(409, f"Requests for {name!r} are not finished.")
            del self._handed_over[name]
            self.replace({name}, {}, {})


def _require_readable(folder: Path) -> None:
    """Raise RequestError if reading `folder` as an adapter would fail or never end."""
    try:
        files = {file.name: file.stat() for file in os.scandir(folder)}
    except (OSError, ValueError):  # ValueError if the text is no valid path.
        files = {}
    if ADAPTER_WEIGHTS not in files:
        raise RequestError(404, f"There is no {ADAPTER_WEIGHTS} in {str(folder)[:300]!a} on the server's machine.")
    if any(not (stat.S_ISREG(file.st_mode) or stat.S_ISDIR(file.st_mode)) for file in files.values()):
        raise RequestError(400, f"{str(folder)!a} holds something that is neither a file nor a folder.")
    if sum(file.st_size for file in files.values()) > MAX_FOLDER_BYTES:
        raise RequestError(400, f"The files in {str(folder)!a} are larger than {MAX_FOLDER_BYTES} bytes.")
