"""Formats of recorded attempts, which integrations and installed packages offer by entry points.

An entry point of the group `retroformer.traces` names a `retroformer.traces.attempt.ReadTraces`: NAME =
"module:function".
"""

from retroformer.plugins import load_plugin, plugin_names
from retroformer.traces.attempt import ReadTraces

ENTRY_POINTS = "retroformer.traces"
"""Entry point group of formats."""


def format_names() -> list[str]:
    """Return the names of the formats, sorted."""
    return plugin_names(ENTRY_POINTS)


def trace_format(name: str) -> ReadTraces:
    """Return the reader of a format. Raises ConfigError or MissingInput, as `load_plugin` does."""
    read: ReadTraces = load_plugin(ENTRY_POINTS, name, "trace format")
    return read
