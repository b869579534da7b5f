"""The open store and endpoint of one process, used from any of its threads."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from retroformer.agents.reflector import ModelReflector
from retroformer.coach.background import Background
from retroformer.coach.recorder import ChainRecorder
from retroformer.config.experiment import Experiment
from retroformer.config.imports import stage_package
from retroformer.config.sections.base import Endpoint
from retroformer.endpoint.http_client import read_key
from retroformer.endpoint.model import LanguageModel
from retroformer.method.prompts import load_pack, reflection_prompt
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.ledger import Ledger
from retroformer.run.store import Store

_RETRY_SECONDS = 30.0
"""Time after which a store that failed is tried again: an agent may run for months."""


class Connection:
    """Store, endpoint and background thread of the process that created it."""

    def __init__(self, experiment: Experiment, writer: Endpoint) -> None:
        """Open the run's store, and prepare a server if the model that writes the advice, `writer`, has no address.

        Raises StoreError, ConfigError, MissingInput.
        """
        # First of all: an error message of the agent may contain the key.
        read_key(writer.api_key_env)
        self._users, self._lock = 1, threading.Lock()
        """Number of calls in progress, and of the reflector until it closes."""
        self._process = os.getpid()
        self._server: Any = None
        pack = load_pack(experiment.actor.prompts, "agent")
        if writer.base_url is None:
            self._server = import_module(f"{stage_package('serve')}.in_process").server_of(experiment)
        self.store = Store(experiment.store_url, experiment.name)
        try:
            for arm in (COLLECT, UNADVISED):
                self.store.declare(arm, {"recorded": {"return": "score", "prompts_sha256": pack.sha256}})
        except BaseException:
            self.store.close()
            raise
        self._model = LanguageModel(writer, writer.base_url or self._server.url)
        self.ledger = Ledger(self.store, retry_after=_RETRY_SECONDS)
        self.background = Background()
        settings = experiment.reflector
        render = partial(reflection_prompt, pack, settings.prompt_characters)
        reflector = ModelReflector(self._model, render, settings.temperature, settings.max_new_tokens)
        self.recorder = ChainRecorder(self.ledger, reflector, experiment.loop.memory)

    @property
    def is_inherited(self) -> bool:
        """True in a process that an agent has forked: only the connection's own process has its threads."""
        return os.getpid() != self._process

    @contextmanager
    def call(self) -> Iterator[None]:
        """Make a call, after which `close` takes effect."""
        if self._server is not None:
            self._server.start()
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            if not self.is_inherited:
                self.close()

    def close(self) -> None:
        """Close everything, now or after the last call in progress: a call may wait for who closes."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self.store.give_up()
        for work in (self._model.close(), self.ledger.settle()):
            self.background.start(work).result()
        self.background.close()
        self.ledger.close()
        self.store.close()
