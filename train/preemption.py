"""Ends a stage after the step in progress if SIGTERM asks for it, as schedulers do before they take a machine away.

The checkpoint of that step is then saved whatever `train.checkpoint_steps` is, so that a preempted job repeats nothing.
A scheduler must leave enough time for one step; if it kills earlier, the last checkpoint counts.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from retroformer.errors import STOPPED_STATUS, RetroformerError

from . import processes


class Stopped(RetroformerError):
    """The stage was asked to end and has saved its work."""

    exit_status = STOPPED_STATUS


_asked = threading.Event()


@contextmanager
def on_sigterm() -> Iterator[None]:
    """Note SIGTERM instead of dying of it, for the duration of the block; only the main thread can do so."""
    _asked.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: _asked.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stop_requested() -> bool:
    """Return True in all processes if one of them was asked to end.

    Every process must call this after the same step, since it waits for the others.
    """
    return processes.total(float(_asked.is_set())) > 0


def stopped(stage: str, done: int, of: int, unit: str) -> Stopped:
    """Return the error that ends the stage."""
    return Stopped(
        f"Stopped by SIGTERM after {unit} {done} of {of} of {stage}, which is saved: run the same command again to go "
        "on."
    )
