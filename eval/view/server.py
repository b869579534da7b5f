"""Serves the site on the loopback interface, and keeps its index up to date while runs go on."""

import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from retroformer.errors import RetroformerError, ServiceError
from retroformer.stories.runs import OpenRun

from .app import application
from .index import Index
from .site import Site
from .sources import Source

HOST = "127.0.0.1"
_POLL_SECONDS = 2.0
_LOGGER = logging.getLogger(__name__)


@contextmanager
def open_site(runs: Sequence[OpenRun], index: Path | None = None) -> Iterator[Site]:
    """Yield the site of these runs, whose index is updated in the background until the end of the `with` block."""
    sources = [Source(run) for run in runs]
    site = Site(sources, Index(sources, index))
    stopped = threading.Event()
    updater = threading.Thread(target=_follow, args=(site.index, stopped), name="view-index")
    updater.start()
    try:
        yield site
    finally:
        stopped.set()
        updater.join()


def _follow(index: Index, stopped: threading.Event) -> None:
    """Index new facts every two seconds; a store that cannot be read is reported once."""
    reported = ""
    while not stopped.is_set():
        try:
            index.update(stopped)
        except RetroformerError as error:
            if str(error) != reported:
                _LOGGER.warning("The stories cannot be read now: %s", error)
            reported = str(error)
        else:
            reported = ""
        stopped.wait(_POLL_SECONDS)


class Server:
    """Server of a site on a port of the loopback interface; port 0 takes a free one.

    Raises:
        ServiceError: the port cannot be used.
    """

    def __init__(self, site: Site, port: int) -> None:
        self._listener = _listener(port)
        port = self._listener.getsockname()[1]
        self.address = f"http://{HOST}:{port}"
        config = uvicorn.Config(application(site, port), log_level="warning", access_log=False, lifespan="off")
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until `stop` is called or the process is interrupted."""
        with self._listener:
            self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """End `run`, from any thread."""
        self._server.should_exit = True


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise ServiceError(
            f"Port {port} of {HOST} cannot be used ({error.strerror}): choose another with --port."
        ) from error
    # Whoever reads the address may connect at once, before the server has started.
    listener.listen()
    return listener
