"""The adapters and other models that a worker serves by name: trained, handed over by clients, and promoted ones."""

import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic import JsonValue

from retroformer.config.sections.base import best_of
from retroformer.endpoint.request_guard import Refusal
from retroformer.errors import RetroformerError
from retroformer.run.adapter_names import REFLECTOR
from retroformer.run.promotions import NO_ADVICE, History, PromotedAdapter, current_of, name_of
from retroformer.run.provenance import (
    ADAPTER_WEIGHTS,
    Provenance,
    ServedModel,
    chat_template_sha256,
    folder_sha256,
    package_versions,
)
from retroformer.run.stage_metrics import require_as_trained

from .engine.model import BASE
from .served_names import ServedNames

PINNED_DIGITS = 12
MAX_ADAPTERS = 8
"""Limit of handed-over adapters loaded at once: a trainer has one at a time, unless it was killed."""
ADAPTER_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""Allowed names of handed-over adapters. Training names its adapters after their folders, whose names are no longer."""
_POLL_SECONDS = 1.0
MAX_FOLDER_BYTES = 16 * 1024**3
"""Limit of the files in an adapter's folder, which is read whole. Rank 256 on all layers of a 70B model has 13 GB."""


logger = logging.getLogger(__name__)


class Target(NamedTuple):
    """The models behind a served name."""

    model: ServedModel
    """Their hashes."""
    adapter: str
    """The engine's name of the adapter that writes."""
    answers: int = 1
    """Number of candidates to choose from."""
    reward: str = ""
    """The engine's name of the reward model that chooses; empty without a choice."""
    silent: bool = False
    """True if the answer is an empty text, as no adapter is promoted; nothing is computed."""


def name_targets(
    base: Path, names: ServedNames, template_settings: Mapping[str, JsonValue] | None = None
) -> dict[str, Target]:
    """Return the target of every name: base, adapters, aliases, best-of names, each also as NAME@HASH.

    The engine names an adapter after its folder. Raises ConfigError if an adapter was trained on another base, and
    ProvenanceError if it has changed since.
    """
    template_sha256 = chat_template_sha256(base, template_settings)
    plain = ServedModel(base_sha256=folder_sha256(base), adapter_sha256=None, chat_template_sha256=template_sha256)
    targets = {"base": Target(plain, BASE)}
    for name, folder in names.adapters.items():
        model = plain.model_copy(update={"adapter_sha256": require_as_trained(folder, plain.base_sha256)})
        targets[name] = Target(model, str(folder))
    targets |= {alias: targets[name] for alias, name in names.aliases.items()}
    for name, folder in names.best_of.items():
        parsed = best_of(name)
        assert parsed is not None, f"{name} is not a best-of name"
        target = targets[parsed.model]
        sha256 = require_as_trained(folder, plain.base_sha256)
        model = target.model.model_copy(update={"reward_sha256": sha256})
        targets[name] = target._replace(model=model, answers=parsed.answers, reward=str(folder))
    return add_pinned_names(targets)


def add_pinned_names(targets: Mapping[str, Target]) -> dict[str, Target]:
    """Return the targets, and each also under NAME@HASH."""
    hashes = {name: target.model.trained_sha256 or target.model.base_sha256 for name, target in targets.items()}
    return {**targets, **{f"{name}@{hashes[name][:PINNED_DIGITS]}": target for name, target in targets.items()}}


class AdapterHolder(Protocol):
    """Holds a base model and adapters that are loaded and unloaded by name."""

    quantization: str
    """Quantisation of the base weights, such as `nf4`; `none` without one."""

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load the adapter in `folder` under a name that was never used. Raises RetroformerError."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        ...


class ServedModels:
    """The served names, which may change from any thread while requests run."""

    def __init__(
        self,
        model: AdapterHolder,
        uses_adapter: Callable[[str], bool],
        targets: Mapping[str, Target],
        dtype: str,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        """Serve these targets; `versions` are those of programs besides the packages of this process.

        `uses_adapter` returns True if requests for an adapter are running or waiting.
        """
        self._model, self._uses_adapter = model, uses_adapter
        self.targets = targets
        self.changing = threading.RLock()
        """Held while the served names are replaced."""
        self._facts: dict[str, Any] = {
            "dtype": dtype,
            "quantization": model.quantization,
            "versions": package_versions() | dict(versions or {}),
        }
        self._handed_over: dict[str, str] = {}
        """The engine's names of handed-over adapters by the served names."""

    @property
    def provenance(self) -> Provenance:
        """The hashes of all served models, and what they run on."""
        return Provenance(models={name: target.model for name, target in self.targets.items()}, **self._facts)

    def load(self, label: str, folder: Path) -> tuple[str, str]:
        """Load an adapter and return the engine's name of it, which begins with `label`, and its hash.

        Raises MissingInput, ConfigError, DamagedFile, ProvenanceError; ServiceError if other servers do not take it.
        """
        sha256 = require_as_trained(folder, self.targets["base"].model.base_sha256)
        # A name that no engine had, even before a restart: prefix caches still have entries under earlier names.
        name = f"{label}@{sha256[:PINNED_DIGITS]}-{secrets.token_hex(4)}"
        self._model.load_adapter(name, folder)
        return name, sha256

    def replace(self, gone: Collection[str], targets: Mapping[str, Target]) -> None:
        """Serve these targets in place of the names in `gone`."""
        with self.changing:
            self.targets = {name: old for name, old in self.targets.items() if name not in gone} | dict(targets)

    def hand_over(self, name: str, folder: Path) -> ServedModel:
        """Load the adapter in `folder`, serve it as `name`, and return its provenance.

        The hash in it is of the files as they were just before the weights were read. Raises Refusal if the name
        is not free, too many adapters are loaded, or the adapter cannot be served.
        """
        # Promotions decide who is the reflector, also in a run that has none yet.
        if not ADAPTER_NAME.fullmatch(name) or name == REFLECTOR:
            raise Refusal(400, f"The name {name[:300]!a} is not free: names match {ADAPTER_NAME.pattern}.")
        with self.changing:
            _require_readable(folder)
            if name in self._handed_over:
                loaded = self.targets[name].model
                if loaded.adapter_sha256 == folder_sha256(folder):
                    return loaded  # A retry: the client did not get the first response.
            if name in self.targets:
                raise Refusal(400, f"The name {name!r} is not free: take another one.")
            if len(self._handed_over) >= MAX_ADAPTERS:
                limit = f"{MAX_ADAPTERS} adapters are loaded, which is the limit: unload one at /v1/unload_lora_adapter"
                raise Refusal(400, f"{limit} ({', '.join(self._handed_over)}).")
            try:
                adapter, sha256 = self.load(name, folder)
            except RetroformerError as error:
                raise Refusal(400, str(error)) from error
            self._handed_over[name] = adapter
            served = self.targets["base"].model.model_copy(update={"adapter_sha256": sha256})
            self.replace((), {name: Target(served, adapter)})
            return served

    def unload_handed_over(self, name: str) -> None:
        """Unload an adapter that a client has handed over, unless requests for it are not finished (Refusal)."""
        with self.changing:
            if name not in self._handed_over:
                raise Refusal(404, f"No adapter {name[:300]!a} was handed over.")
            if self._uses_adapter(self._handed_over[name]):
                raise Refusal(409, f"Requests for {name!r} are not finished.")
            self._model.unload_adapter(self._handed_over.pop(name))
            self.replace({name}, {})


def _require_readable(folder: Path) -> None:
    """Raise Refusal if reading `folder` as an adapter would fail or never end."""
    try:
        files = {file.name: file.stat() for file in os.scandir(folder)}
    except (OSError, ValueError):  # ValueError if the text is no valid path.
        files = {}
    if ADAPTER_WEIGHTS not in files:
        raise Refusal(404, f"There is no {ADAPTER_WEIGHTS} in {str(folder)[:300]!a} on the server's machine.")
    if any(not (stat.S_ISREG(file.st_mode) or stat.S_ISDIR(file.st_mode)) for file in files.values()):
        raise Refusal(400, f"{str(folder)!a} holds something that is neither a file nor a folder.")
    if sum(file.st_size for file in files.values()) > MAX_FOLDER_BYTES:
        raise Refusal(400, f"The files in {str(folder)!a} are larger than {MAX_FOLDER_BYTES} bytes.")


class PromotedReflector:
    """The name `reflector`, with its pinned and best-of-n names: the promoted adapter of a run.

    Replaced adapters stay loaded: a request that has chosen one may not have begun, and a rollback serves it again.
    """

    def __init__(self, served: ServedModels, history: History) -> None:
        self._served, self._history = served, history
        self._records = 0
        """Number of the records that are served."""
        self._engine_names: dict[str, str] = {}
        """The engine's names of adapters by their hashes."""
        self._current: PromotedAdapter | None = None

    def update(self) -> None:
        """Serve the adapter that is current now. Nothing changes before the first promotion of a run.

        The served names stay as they were if a record or the copy of the adapter is damaged (DamagedFile), or it cannot
        be loaded (MissingInput).
        """
        if self._history.length == self._records:
            return
        records = self._history.records()
        adapter = current_of(records)
        if adapter is not None and adapter.sha256 not in self._engine_names:
            self._engine_names[adapter.sha256], _ = self._served.load(adapter.name, self._history.folder_of(adapter))
        if adapter is None or self._current is None or self._current.sha256 != adapter.sha256:
            self._serve(adapter)
        self._current, self._records = adapter, len(records)

    def follow(self) -> None:
        """Keep serving the current adapter. An update that fails is logged once, and the served adapter stays."""
        failure = ""
        while True:
            time.sleep(_POLL_SECONDS)
            try:
                self.update()
                failure = ""
            except (RetroformerError, OSError) as error:
                if str(error) != failure:
                    logger.error("reflector stays as it is: %s", error)
                failure = str(error)

    def _serve(self, adapter: PromotedAdapter | None) -> None:
        # What answers with an empty text is not the base, and facts of the two must not be mixed.
        changes = {"adapter_sha256": adapter.sha256} if adapter else {"base_sha256": NO_ADVICE}
        engine_name = self._engine_names[adapter.sha256] if adapter else ""
        with self._served.changing:
            targets = self._served.targets
            names = {name for name in targets if name.partition("@")[0].partition("+")[0] == REFLECTOR}
            served = targets["base"].model.model_copy(update=changes)
            new = {REFLECTOR: targets["base"]._replace(model=served, adapter=engine_name, silent=adapter is None)}
            for name in (name for name in names if "+" in name and "@" not in name):
                model = served.model_copy(update={"reward_sha256": targets[name].model.reward_sha256})
                new[name] = targets[name]._replace(model=model, adapter=engine_name, silent=adapter is None)
            self._served.replace(names, add_pinned_names(new) if adapter else new)
        logger.warning("reflector is %s from now on.", name_of(adapter))
