"""An event loop in a thread of its own, so that synchronous and asynchronous callers share one store and one client."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class Background:
    """Event loop that runs until it is closed or the program ends."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="retroformer", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Start this work; the future can be waited for in any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Stop the loop; no work may be in progress."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
