"""The open store and endpoint of one process, used from any of its threads."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from retroformer.agents.reflector import ModelReflector
from retroformer.coach.background import Background
from retroformer.coach.recorder import ChainRecorder
from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import Endpoint, Section
from retroformer.endpoint.http_client import read_key
from retroformer.endpoint.model import LanguageModel
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.method.prompts import load_pack, reflection_prompt
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.ledger import Ledger
from retroformer.run.store import Store

_IN_CALL: "ContextVar[Connection | None]" = ContextVar("_IN_CALL", default=None)
"""Connection of the call that this code is part of, such as an agent's attempt."""


class Settings(Section):
    """Arguments of a `Reflector`."""

    endpoint: Endpoint
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
        """Open the store. Raises StoreError, ConfigError, MissingInput."""
        # First of all: an error message of the agent may contain the key.
        read_key(settings.endpoint.api_key_env)
        self._calls, self._idle = 0, threading.Condition()
        self._process, self._closing = os.getpid(), False
        pack = load_pack(settings.prompts, "agent")
        self.store = Store(settings.store, settings.run)
        try:
            for arm in (COLLECT, UNADVISED):
                self.store.declare(arm, {"recorded": {"return": "score", "prompts_sha256": pack.sha256}})
        except BaseException:
            self.store.close()
            raise
        assert settings.endpoint.base_url is not None
        self._model = LanguageModel(settings.endpoint, settings.endpoint.base_url)
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
        """Make a call, which `close` waits for."""
        with self._idle:
            self._calls += 1
        before = _IN_CALL.set(self)
        try:
            yield
        finally:
            _IN_CALL.reset(before)
            if not self.is_inherited:
                self._leave()

    def close(self) -> None:
        """Close everything after the calls in progress. Inside a call this does not wait: the last call closes it."""
        with self._idle:
            if _IN_CALL.get() is self:
                self._closing = True
                return
            self._idle.wait_for(lambda: self._calls == 0)
        self._close()

    def _leave(self) -> None:
        with self._idle:
            self._calls -= 1
            self._idle.notify_all()
            is_last = self._closing and self._calls == 0
        if is_last:
            self._close()

    def _close(self) -> None:
        self.background.start(self._model.close()).result()
        self.background.close()
        self.ledger.close()
        self.store.close()
