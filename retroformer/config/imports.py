"""Imports by name: the four stages, what installed packages offer by entry points, and functions of the user's code."""

import importlib
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from retroformer.errors import ConfigError, MissingInput

Stage = Literal["collect", "train", "serve", "eval"]


def stage_package(name: Stage) -> str:
    """Return the import path of a stage, to import it or to run it with `python -m`."""
    bundled = f"retroformer.{name}"
    return bundled if find_spec(bundled) is not None else name


def require_extra(extra: str, *modules: str) -> None:
    """Raise MissingInput if a module of an extra is not installed."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingInput(f"{module} is not installed: run `pip install 'retroformer[{extra}]'`.")


def plugin_names(group: str) -> list[str]:
    """Return the names in a group of entry points, sorted."""
    return sorted({point.name for point in entry_points(group=group)})


def plugin_versions(group: str, name: str) -> dict[str, str]:
    """Return name and version of the packages that offer a name; empty if none does."""
    points = entry_points(group=group, name=name)
    return {point.dist.name: point.dist.version for point in points if point.dist is not None}


def load_plugin(group: str, name: str, kind: str) -> Any:
    """Return what is offered under a name; `kind` says what it is in errors.

    Raises ConfigError if no package offers it, or two do, and MissingInput if it cannot be imported.
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


def function_of(address: str) -> Callable[..., Any]:
    """Import the function `package.module:function`, also from the working folder. Raises ConfigError."""
    module_name, colon, name = address.partition(":")
    if not colon:
        raise ConfigError(f"{address!r} is not the address of a function: write it as package.module:function.")
    _import_from_here()
    try:
        function = getattr(importlib.import_module(module_name), name)
    except (Exception, SystemExit) as error:  # The module is the user's own: it may even end the program.
        what = str(error) if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"The function {address} cannot be imported: {what}.") from error
    if not callable(function):
        raise ConfigError(f"{address} is a {type(function).__name__}: name a function.")
    checked: Callable[..., Any] = function
    return checked


def module_files(address: str) -> list[Path]:
    """Return the Python files of `package.module:function`: all of its package, or its own if it is in none."""
    _import_from_here()
    module = address.partition(":")[0]
    try:
        package = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if package is None:
        return []
    if package.submodule_search_locations:  # A folder without __init__.py may have several.
        return sorted(file for folder in package.submodule_search_locations for file in Path(folder).rglob("*.py"))
    return [Path(package.origin)] if package.origin and Path(package.origin).is_file() else []


def _import_from_here() -> None:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
