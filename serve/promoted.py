"""Serves the promoted adapter of a run as `reflector`, and follows promotions and rollbacks while the server runs.

The old adapter stays loaded until the requests that began with it are finished.
"""

import logging
import time
from typing import NamedTuple

from retroformer.errors import RetroformerError
from retroformer.experiment.adapters import REFLECTOR
from retroformer.promotions.history import History, current_of, name_of
from retroformer.promotions.promotion import NO_ADVICE, PromotedAdapter

from .models import PINNED_DIGITS, ServedModels, Target

_POLL_SECONDS = 1.0
_KEEP_SECONDS = 60.0
"""Time for which a replaced adapter stays loaded at least: a request that has chosen it may not have begun."""

logger = logging.getLogger(__name__)


class _Replaced(NamedTuple):
    """Adapter that is no longer served."""

    engine_name: str
    since: float


class PromotedReflector:
    """The name `reflector`, with its pinned and best-of-n names."""

    def __init__(self, served: ServedModels, history: History) -> None:
        self._served, self._history = served, history
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
            self._serve(Target(self._served.load(self._history.folder_of(adapter))), adapter)
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
        with self._served.changing:
            targets, models = self._served.targets, self._served.provenance.models
            served = models["base"].model_copy(
                # What answers with an empty text is not the base, and facts of the two must not be mixed.
                update={"adapter_sha256": adapter.sha256} if adapter else {"base_sha256": NO_ADVICE}
            )
            names = {name for name in targets if name.partition("@")[0].partition("+")[0] == REFLECTOR}
            new_targets, new_models = {REFLECTOR: target}, {REFLECTOR: served}
            for name in (name for name in names if "+" in name and "@" not in name):
                new_targets[name] = targets[name]._replace(adapter=target.adapter, silent=target.silent)
                new_models[name] = served.model_copy(update={"reward_sha256": models[name].reward_sha256})
            for name, model in list(new_models.items()) if adapter else ():
                pinned = f"{name}@{str(model.trained_sha256)[:PINNED_DIGITS]}"
                new_targets[pinned], new_models[pinned] = new_targets[name], model
            self._served.replace(names, new_targets, new_models)
        if self._loaded is not None:
            self._replaced.append(_Replaced(self._loaded[1], time.monotonic()))
        self._loaded = (adapter, target.adapter) if adapter else None
        logger.warning("reflector is %s from now on.", name_of(adapter))

    def _unload_unused(self) -> None:
        for replaced in list(self._replaced):
            kept_long_enough = time.monotonic() - replaced.since > _KEEP_SECONDS
            if kept_long_enough and self._served.unload_if_unused(replaced.engine_name):
                self._replaced.remove(replaced)
