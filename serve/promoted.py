"""Serves the promoted adapter of a run as `reflector`, and follows promotions and rollbacks while the server runs.

Every adapter is loaded under a name that the engine never had, as its cache still holds prompts computed under earlier
names. The old adapter stays loaded until the requests that began with it are finished.
"""

import itertools
import logging
import time
from collections.abc import Mapping
from threading import RLock
from typing import NamedTuple, Protocol

from retroformer.errors import RetroformerError
from retroformer.experiment.adapters import REFLECTOR
from retroformer.promotions.history import History, current_of, name_of
from retroformer.promotions.promotion import NO_ADVICE, PromotedAdapter
from retroformer.provenance import Provenance, ServedModel

from .engine.best_of import Target
from .engine.engine import Engine
from .engine.model import Model
from .targets import PINNED_DIGITS

_POLL_SECONDS = 1.0
_KEEP_SECONDS = 60.0
"""Time for which a replaced adapter stays loaded at least: a request that has chosen it may not have begun."""

logger = logging.getLogger(__name__)


class ReflectorHost(Protocol):
    """The part of a worker that is needed here."""

    targets: Mapping[str, Target]
    provenance: Provenance
    changing: RLock

    def replace_models(self, targets: Mapping[str, Target], models: Mapping[str, ServedModel]) -> None:
        """Serve these names from now on."""
        ...


class _Replaced(NamedTuple):
    """Adapter that is no longer served."""

    engine_name: str
    since: float


class PromotedReflector:
    """The name `reflector`, with its pinned and best-of-n names, of a worker."""

    def __init__(self, worker: ReflectorHost, model: Model, engine: Engine, history: History) -> None:
        self._worker, self._model, self._engine, self._history = worker, model, engine, history
        self._numbers = itertools.count()
        self._records = 0
        """Number of the records that are served."""
        self._loaded: tuple[PromotedAdapter, str] | None = None
        """The served adapter, with its name in the engine."""
        self._replaced: list[_Replaced] = []

    def update(self) -> None:
        """Serve the adapter that is current now. Nothing changes before the first promotion of a run.

        Raises:
            DamagedFile: a record or the copy of the adapter is damaged; the served names stay as they were.
            MissingInput: the adapter cannot be loaded.
        """
        if self._history.length == self._records:
            return
        records = self._history.records()
        adapter = current_of(records)
        if adapter is None:
            self._serve(Target("", silent=True), None)
        elif self._loaded is None or self._loaded[0].sha256 != adapter.sha256:
            engine_name = f"promoted{next(self._numbers)}"
            self._model.load_adapter(engine_name, self._history.folder_of(adapter))
            self._serve(Target(engine_name), adapter)
        self._records = len(records)

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
            self._unload_unused()

    def _serve(self, target: Target, adapter: PromotedAdapter | None) -> None:
        with self._worker.changing:
            models = self._worker.provenance.models
            served = models["base"].model_copy(
                # What answers with an empty text is not the base, and facts of the two must not be mixed.
                update={"adapter_sha256": adapter.sha256} if adapter else {"base_sha256": NO_ADVICE}
            )
            names = {name for name in self._worker.targets if _is_reflector(name)}
            best_of = {name for name in names if "+" in name and "@" not in name}
            new_targets, new_models = {REFLECTOR: target}, {REFLECTOR: served}
            for name in best_of:
                old = self._worker.targets[name]
                new_targets[name] = old._replace(adapter=target.adapter, silent=target.silent)
                new_models[name] = served.model_copy(update={"reward_sha256": models[name].reward_sha256})
            for name, model in list(new_models.items()) if adapter else ():
                pinned = f"{name}@{str(model.trained_sha256)[:PINNED_DIGITS]}"
                new_targets[pinned], new_models[pinned] = new_targets[name], model
            self._worker.replace_models(
                {name: old for name, old in self._worker.targets.items() if name not in names} | new_targets,
                {name: model for name, model in models.items() if name not in names} | new_models,
            )
        if self._loaded is not None:
            self._replaced.append(_Replaced(self._loaded[1], time.monotonic()))
        self._loaded = (adapter, target.adapter) if adapter else None
        logger.warning("reflector is %s from now on.", name_of(adapter))

    def _unload_unused(self) -> None:
        for replaced in list(self._replaced):
            kept_long_enough = time.monotonic() - replaced.since > _KEEP_SECONDS
            if kept_long_enough and not self._engine.works_on(replaced.engine_name):
                self._model.unload_adapter(replaced.engine_name)
                self._replaced.remove(replaced)


def _is_reflector(name: str) -> bool:
    return name.partition("@")[0].partition("+")[0] == REFLECTOR
