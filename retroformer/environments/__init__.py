"""Where tasks come from. Adding an environment: one file here, one section, one YAML, one test (CONTRIBUTING.md)."""

import difflib
import importlib
from importlib.metadata import entry_points
from typing import Any

from pydantic_core import PydanticCustomError

from retroformer.environments.sections import Alfworld, EnvironmentSection, Hotpotqa, Programming, Webshop
from retroformer.errors import ConfigError
from retroformer.protocols import Fingerprinted, Taskset
from retroformer.provenance import files_sha256, package_versions

ENTRY_POINTS = "retroformer.environments"
"""Where an installed package names its environments: NAME = "module", which has `Section` and `taskset`. Names of our
own come first."""

_OWN: dict[str, type[EnvironmentSection]] = {
    "alfworld": Alfworld,
    "hotpotqa": Hotpotqa,
    "programming": Programming,
    "webshop": Webshop,
}


def taskset(section: EnvironmentSection, seed: int = 0) -> Taskset:
    """The tasks that a section describes, importing only what they need. Raises ConfigError, MissingInput."""
    made: Taskset = _module(section.name).taskset(section, seed)
    return made


def fingerprint(section: EnvironmentSection, seed: int = 0) -> str:
    """The sha256 of the data that the tasks of this split are made of; empty where they are made of none.

    A taskset says so itself (`fingerprint()`); of one that does not, all files in `environment.data` count.

    Raises:
        MissingInput: the data are not there.
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
    """Versions of the packages that decide how an environment answers."""
    if section.name in _OWN:
        return package_versions(section.packages) | section.tool_versions()
    points = entry_points(group=ENTRY_POINTS, name=section.name)
    packages = {point.dist.name: point.dist.version for point in points if point.dist is not None}
    return packages | section.tool_versions()


def section_of(value: Any) -> Any:
    """The section that a page's `environment:` describes, by its name.

    Raises:
        PydanticCustomError: there is no such environment.
        ValidationError: its keys are at fault.
    """
    if not isinstance(value, dict):
        return value
    if "name" not in value:
        raise PydanticCustomError("environment", "Give it a name: known are {known}", {"known": ", ".join(_known())})
    return section_class(str(value["name"])).model_validate(value)


def section_class(name: str) -> type[EnvironmentSection]:
    """The section of the environment called `name`. Raises PydanticCustomError."""
    if name in _OWN:
        return _OWN[name]
    if name not in _known():
        close = difflib.get_close_matches(name, _known(), n=1)
        hint = f"Did you mean `{close[0]}`?" if close else f"Known are {', '.join(_known())}."
        raise PydanticCustomError("environment", "No environment {name}. {hint}", {"name": repr(name), "hint": hint})
    try:
        found: type[EnvironmentSection] = _module(name).Section
    except ConfigError as error:
        raise PydanticCustomError("environment", "{fault}", {"fault": str(error)}) from error
    return found


def _known() -> list[str]:
    return sorted({*_OWN, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def _module(name: str) -> Any:
    """The module of an environment, ours or an installed package's. Raises ConfigError where a package is at fault."""
    if name in _OWN:
        return importlib.import_module(f"retroformer.environments.{name}")
    points = list(entry_points(group=ENTRY_POINTS, name=name))
    packages = " and ".join(sorted(point.dist.name if point.dist else point.value for point in points))
    if len(points) > 1:
        raise ConfigError(f"The packages {packages} both have an environment {name!r}: uninstall one of them.")
    try:
        module = points[0].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"The environment {name!r} of the package {packages} cannot be imported: {error}.") from error
    section = getattr(module, "Section", None)
    if not (isinstance(section, type) and issubclass(section, EnvironmentSection)):
        raise ConfigError(f"The environment {name!r} of the package {packages} has no `Section(EnvironmentSection)`.")
    if not callable(getattr(module, "taskset", None)):
        raise ConfigError(f"The environment {name!r} of the package {packages} has no `taskset(section, seed)`.")
    return module
