"""Imports functions of the user's own code, `package.module:function`, also from the folder where the command runs."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retroformer.errors import ConfigError


def function_of(address: str) -> Callable[..., Any]:
    """Import the function `package.module:function`.

    Raises:
        ConfigError: there is no such function.
    """
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
        package = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return []
    if package is None or package.origin is None or not Path(package.origin).is_file():
        return []
    origin = Path(package.origin)
    return sorted(origin.parent.rglob("*.py")) if package.submodule_search_locations else [origin]


def _import_from_here() -> None:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
