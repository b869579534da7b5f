"""Listeners for traces that other programs send, which integrations and installed packages offer by entry points.

An entry point of the group `retroformer.listeners` names a `Serve` function: NAME = "module:function". It writes what
it receives to files that the format of the same name reads.
"""

from collections.abc import Callable
from pathlib import Path

from retroformer.plugins import load_plugin

ENTRY_POINTS = "retroformer.listeners"
"""Entry point group of listeners."""

Serve = Callable[[Path, int, Callable[[str], None]], None]
"""Serves until it is interrupted: gets the folder for the traces, the port, and what to call with its address."""


def listener(name: str) -> Serve:
    """Return a listener. Raises ConfigError or MissingInput, as `load_plugin` does."""
    serve: Serve = load_plugin(ENTRY_POINTS, name, "trace listener")
    return serve
