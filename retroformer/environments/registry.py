"""Environments by name: folders beside this module, and modules that installed packages name.

The module of an environment has `Section`, a config section, and `taskset(section, seed)`; `extras` is optional.
"""

import difflib
import importlib
import pkgutil
from functools import cache
from typing import Any

from pydantic_core import PydanticCustomError

from retroformer import environments
from retroformer.config.imports import load_plugin, plugin_names, plugin_versions
from retroformer.environments.extras import Extras
from retroformer.environments.section import EnvironmentSection
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.protocols import Fingerprinted, Taskset
from retroformer.run.provenance import files_sha256, package_versions

ENTRY_POINTS = "retroformer.environments"
"""Entry point group of installed packages' environments: NAME = "module". Our own names take precedence."""


def taskset(section: EnvironmentSection, seed: int = 0) -> Taskset:
    """Return the tasks that a section describes. Raises ConfigError, MissingInput."""
    tasks: Taskset = _module(section.name).taskset(section, seed)
    return tasks


def extras(section: EnvironmentSection) -> Extras:
    """Return the optional parts of this section's environment. Raises ConfigError."""
    offered: Extras = getattr(_module(section.name), "extras", Extras())
    return offered


def fingerprint(section: EnvironmentSection, seed: int = 0) -> str:
    """Return the sha256 of the data behind the tasks of this split; empty if there are no data.

    A taskset may define `fingerprint()`; otherwise all files in `environment.data` count. Raises MissingInput.
    """
    source = taskset(section, seed)
    if isinstance(source, Fingerprinted):
        return source.fingerprint()
    if section.data is None:
        return ""
    if section.data.is_file():
        return files_sha256({section.data.name: section.data})
    files = (path for path in section.data.rglob("*") if path.is_file())
    return files_sha256({str(path.relative_to(section.data)): path for path in files})


def environment_versions(section: EnvironmentSection) -> dict[str, str]:
    """Return the versions of the packages and programs that affect how an environment answers."""
    distribution = {} if section.name in _own_names() else plugin_versions(ENTRY_POINTS, section.name)
    return distribution | package_versions(section.packages) | dict(extras(section).tool_versions(section))


def section_of(value: Any) -> Any:
    """Return the section that a config's `environment:` describes, by its name.

    Raises PydanticCustomError, ValidationError.
    """
    if not isinstance(value, dict):
        return value
    if "name" not in value:
        names = ", ".join(_names())
        raise PydanticCustomError("environment", "Give it a name: choose one of {names}", {"names": names})
    return section_class(str(value["name"])).model_validate(value)


def section_class(name: str) -> type[EnvironmentSection]:
    """Return the section of the environment called `name`. Raises PydanticCustomError."""
    if name not in _names():
        close = difflib.get_close_matches(name, _names(), n=1)
        hint = f"Did you mean `{close[0]}`?" if close else f"Choose one of {', '.join(_names())}."
        raise PydanticCustomError("environment", "No environment {name}. {hint}", {"name": repr(name), "hint": hint})
    try:
        section: type[EnvironmentSection] = _module(name).Section
    except (ConfigError, MissingInput) as error:
        raise PydanticCustomError("environment", "{fault}", {"fault": str(error)}) from error
    return section


@cache
def _own_names() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(environments.__path__) if module.ispkg)


def _names() -> list[str]:
    return sorted({*_own_names(), *plugin_names(ENTRY_POINTS)})


def _module(name: str) -> Any:
    """Return the module of an environment, ours or a package's. Raises ConfigError, MissingInput."""
    if name in _own_names():
        return importlib.import_module(f"{environments.__name__}.{name}")
    module = load_plugin(ENTRY_POINTS, name, "environment")
    section, missing = getattr(module, "Section", None), ""
    if not (isinstance(section, type) and issubclass(section, EnvironmentSection)):
        missing = "Section(EnvironmentSection)"
    elif not callable(getattr(module, "taskset", None)):
        missing = "taskset(section, seed)"
    if missing:
        package = " ".join(plugin_versions(ENTRY_POINTS, name))
        raise ConfigError(f"The environment {name!r} of the package {package} has no `{missing}`.")
    return module
