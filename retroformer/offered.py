"""Functions that integrations and installed packages offer by entry points, such as trace formats and backends."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from retroformer.errors import ConfigError, MissingInput


def offered_names(group: str) -> list[str]:
    """Return the names in a group of entry points, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def offered(group: str, name: str, kind: str) -> Any:
    """Return what is offered under a name; `kind` says what it is in errors.

    Raises:
        ConfigError: no package offers it, or two do.
        MissingInput: its module cannot be imported, for example because an extra is not installed.
    """
    points = list(entry_points(group=group, name=name))
    if not points:
        raise ConfigError(f"There is no {kind} {name!r}: choose one of {', '.join(offered_names(group))}.")
    packages = " and ".join(sorted(_package(point) for point in points))
    if len(points) > 1:
        raise ConfigError(f"The packages {packages} both have a {kind} {name!r}: uninstall one of them.")
    try:
        return points[0].load()
    except (ImportError, AttributeError) as error:
        raise MissingInput(
            f"The {kind} {name!r} of the package {packages} cannot be imported: {error}. "
            f"Install what it needs: `pip install '{packages}[{name}]'`."
        ) from error
    except (Exception, SystemExit) as error:  # The package is not ours: anything may go wrong in it.
        raise MissingInput(
            f"The {kind} {name!r} of the package {packages} cannot be imported: {type(error).__name__}: {error}."
        ) from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value
