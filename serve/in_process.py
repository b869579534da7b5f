"""Serves in threads of this process what `retroformer serve` serves, for an agent whose reflector has no address."""

import asyncio
import logging
import os
import socket
import threading

from retroformer.config.experiment import Experiment
from retroformer.endpoint.request_guard import listen
from retroformer.errors import RetroformerError

from .endpoint import LOOPBACK, worker_settings
from .served_names import WorkerSettings

_LOGGER = logging.getLogger(__name__)


class InProcessServer:
    """The models of a run at an address on this machine. A forked child asks the server of its parent."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings, self._start = settings, threading.Lock()
        # Connections wait in the queue of the socket until the server has started.
        self._listening: socket.socket | None = listen(0, LOOPBACK)
        self.url = f"http://{LOOPBACK}:{self._listening.getsockname()[1]}/v1"
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Load the models in a thread, unless they are loaded."""
        with self._start:
            listening, self._listening = self._listening, None
        if listening is not None:
            threading.Thread(target=self._run, args=[listening], name="reflector", daemon=True).start()

    def _run(self, listening: socket.socket) -> None:
        from .worker import serve

        try:
            asyncio.run(serve(self._settings, listening))
        except RetroformerError as error:
            _LOGGER.warning("The reflector cannot be loaded: %s", error)
        finally:
            listening.close()  # Requests end at once instead of waiting.

    def _forget(self) -> None:
        self._start = threading.Lock()
        if self._listening is not None:
            self._listening.close()
            self._listening = None


_servers: dict[str, InProcessServer] = {}
_LOCK = threading.Lock()


def server_of(experiment: Experiment) -> InProcessServer:
    """Return the server of a run in this process, which all reflectors of the run share.

    Raises:
        MissingInput: an adapter or the embedded model does not exist, or the extra `serve` is not installed.
        ConfigError: an adapter cannot be served with this config.
    """
    settings = worker_settings(experiment, follow=True)
    with _LOCK:
        if (key := settings.model_dump_json()) not in _servers:
            _servers[key] = InProcessServer(settings)
        return _servers[key]
