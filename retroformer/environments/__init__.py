"""Where tasks come from. Adding an environment: one file here, one section, one YAML, one test (CONTRIBUTING.md)."""

import difflib
import importlib
from importlib.metadata import entry_points
from typing import Any

from pydantic_core import PydanticCustomError

from retroformer.environments.sections import Alfworld, EnvironmentSection, Hotpotqa, Programming, Webshop
from retroformer.protocols import Taskset

ENTRY_POINTS = "retroformer.environments"
"""Where an installed package names its environments: NAME = "module", which has `Section` and `taskset`."""

_OWN: dict[str, type[EnvironmentSection]] = {
    "alfworld": Alfworld,
    "hotpotqa": Hotpotqa,
    "programming": Programming,
    "webshop": Webshop,
}


def taskset(section: EnvironmentSection, seed: int = 0) -> Taskset:
    """The tasks that a section describes. Imports only what that environment needs."""
    made: Taskset = _module(section.name).taskset(section, seed)
    return made


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
    found: type[EnvironmentSection] = _module(name).Section
    return found


def _known() -> list[str]:
    return sorted({*_OWN, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def _module(name: str) -> Any:
    if name in _OWN:
        return importlib.import_module(f"retroformer.environments.{name}")
    (point,) = entry_points(group=ENTRY_POINTS, name=name)
    return point.load()
