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
from retroformer.config.sections.base import Endpoint, Section
from retroformer.endpoint.http_client import read_key
from retroformer.endpoint.model import LanguageModel
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.method.prompts import load_pack, reflection_prompt
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.ledger import Ledger
from retroformer.run.store import Store


class Settings(Section):
    """Arguments of a `Reflector`."""

    endpoint: Endpoint
    served: Experiment | None = None
    """Run whose reflector is served in this process, if the endpoint has no address."""
    temperature: float
    max_new_tokens: int
    prompts: str
    store: SecretUrl
    run: str
    prompt_characters: int
    memory: int

    @classmethod
    def of(cls, experiment: Experiment, base_url: SecretUrl) -> "Settings":
        """Return the settings of a config whose reflector is at this address."""
        return cls(
            endpoint=experiment.reflector.endpoint.model_copy(update={"base_url": base_url}),
            temperature=experiment.reflector.temperature,
            max_new_tokens=experiment.reflector.max_new_tokens,
            prompts=experiment.actor.prompts,
            store=experiment.store_url,
            run=experiment.name,
            prompt_characters=experiment.reflector.prompt_characters,
            memory=experiment.loop.memory,
        )


class Connection:
    """Store, endpoint and background thread of the process that created it."""

    def __init__(self, settings: Settings) -> None:
        """Open the store, and prepare a server if the reflector has no address.

        Raises StoreError, ConfigError, MissingInput.
        """
        # First of all: an error message of the agent may contain the key.
        read_key(settings.endpoint.api_key_env)
        self._users, self._lock = 1, threading.Lock()
        """Number of calls in progress, and of the reflector until it closes."""
        self._process = os.getpid()
        self._server: Any = None
        pack = load_pack(settings.prompts, "agent")
        if settings.served is not None:
            self._server = import_module(f"{stage_package('serve')}.in_process").server_of(settings.served)
        self.store = Store(settings.store, settings.run)
        try:
            for arm in (COLLECT, UNADVISED):
                self.store.declare(arm, {"recorded": {"return": "score", "prompts_sha256": pack.sha256}})
        except BaseException:
            self.store.close()
            raise
        self._model = LanguageModel(settings.endpoint, settings.endpoint.base_url or self._server.url)
        self.ledger = Ledger(self.store)
        self.background = Background()
        render = partial(reflection_prompt, pack, settings.prompt_characters)
        reflector = ModelReflector(self._model, render, settings.temperature, settings.max_new_tokens)
        self.recorder = ChainRecorder(self.ledger, reflector, settings.memory)

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
