"""Loads what integrations and installed packages offer by entry points, such as commands, environments and formats."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from retroformer.errors import ConfigError, MissingInput


def plugin_names(group: str) -> list[str]:
    """Return the names in a group of entry points, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def plugin_versions(group: str, name: str) -> dict[str, str]:
    """Return name and version of the packages that offer a name; empty if none does."""
    points = entry_points(group=group, name=name)
    return {point.dist.name: point.dist.version for point in points if point.dist is not None}


def load_plugin(group: str, name: str, kind: str) -> Any:
    """Return what is offered under a name; `kind` says what it is in errors.

    Raises:
        ConfigError: no package offers it, or two do.
        MissingInput: it cannot be imported, for example because an extra is not installed.
    """
    points = list(entry_points(group=group, name=name))
    if not points:
        raise ConfigError(f"There is no {kind} {name!r}: choose one of {', '.join(plugin_names(group)) or 'none'}.")
    packages = " and ".join(sorted(_package(point) for point in points))
    if len(points) > 1:
        article = "an" if kind[0] in "aeiou" else "a"
        raise ConfigError(f"The packages {packages} both have {article} {kind} {name!r}: uninstall one of them.")
    try:
        return points[0].load()
    except (Exception, SystemExit) as error:  # The package is not ours: anything may go wrong in it.
        why = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise MissingInput(
            f"The {kind} {name!r} of the package {packages} cannot be imported: {' '.join(why.split())}."
            f"{_extra_to_install(points[0], error)}"
        ) from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _extra_to_install(point: EntryPoint, error: BaseException) -> str:
    """Name the extra of the package that has the name of the entry point, if something was not found; else empty."""
    extras = (point.dist and point.dist.metadata.get_all("Provides-Extra")) or []
    if not isinstance(error, ImportError) or point.name not in extras:
        return ""
    return f" Install what it needs: `pip install '{_package(point)}[{point.name}]'`."
