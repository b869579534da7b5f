"""Serves a site in a thread for the time of a `with` block."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from eval.view.server import SiteServer


@contextmanager
def serving(server: SiteServer) -> Iterator[str]:
    """Yield the address of the server while it runs."""
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server.address
    finally:
        server.stop()
        thread.join()
