"""Formats of recorded attempts, which integrations and installed packages offer by entry points.

An entry point of the group `retroformer.traces` names a `retroformer.traces.attempt.ReadTraces`: NAME =
"module:function".
"""

from importlib.metadata import EntryPoint, entry_points

from retroformer.errors import ConfigError, MissingInput
from retroformer.traces.attempt import ReadTraces

ENTRY_POINTS = "retroformer.traces"
"""Entry point group of formats."""


def format_names() -> list[str]:
    """Return the names of the formats, sorted."""
    return sorted({point.name for point in entry_points(group=ENTRY_POINTS)})


def trace_format(name: str) -> ReadTraces:
    """Return the reader of a format.

    Raises:
        ConfigError: no package offers it, or two do.
        MissingInput: its module cannot be imported, for example because an extra is not installed.
    """
    points = list(entry_points(group=ENTRY_POINTS, name=name))
    if not points:
        raise ConfigError(f"There is no format {name!r} of traces: choose one of {', '.join(format_names())}.")
    packages = " and ".join(sorted(_package(point) for point in points))
    if len(points) > 1:
        raise ConfigError(f"The packages {packages} both have a format {name!r}: uninstall one of them.")
    try:
        read: ReadTraces = points[0].load()
    except (ImportError, AttributeError) as error:
        raise MissingInput(
            f"The format {name!r} of the package {packages} cannot be imported: {error}. "
            f"Install what it needs: `pip install '{packages}[{name}]'`."
        ) from error
    return read


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
