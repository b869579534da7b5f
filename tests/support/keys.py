"""All keys of a config, each counted once however many sections have it."""

from collections.abc import Iterator, Sequence
from inspect import get_annotations
from typing import Any, get_args

from pydantic import BaseModel

from retroformer.agents.arms.arm import Arm
from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import Section
from retroformer.config.sections.eval import arm_kinds
from retroformer.environments.registry import section_class, section_of
from retroformer.environments.section import EnvironmentSection

ENVIRONMENTS = ("alfworld", "hotpotqa", "webshop", "programming")


def keys_by_section() -> dict[tuple[str, str], set[str]]:
    """Return the dotted paths of each key, by the section class that first declares it and its name there.

    A key that several sections inherit, such as the learning rate of the stages, is one key with several paths, and so
    is a key of all environments. `NAME` stands for a name of the config's choice, as in `eval.arms.NAME.kind`.
    """
    paths = dict[tuple[str, str], set[str]]()
    for path, section, name in _keys(Experiment, ""):
        declaring = [base for base in section.__mro__ if name in get_annotations(base)][-1]
        paths.setdefault((declaring.__name__, name), set()).add(path)
    return paths


def keys() -> dict[str, tuple[str, str]]:
    """Return section and name of each key, by its dotted path."""
    return {path: key for key, paths in keys_by_section().items() for path in paths}


def is_set(value: Any, path: Sequence[str]) -> bool:
    """Return True if a config as read from YAML has the key at `path`."""
    if not path:
        return True
    if not isinstance(value, dict):
        return False
    names = value if path[0] == "NAME" else [path[0]]
    return any(name in value and is_set(value[name], path[1:]) for name in names)


def _keys(section: type[BaseModel], prefix: str) -> Iterator[tuple[str, type[BaseModel], str]]:
    for name, field in section.model_fields.items():
        below = list(_sections_in(field.annotation))
        named = "NAME." if isinstance(field.default, dict) else ""
        for child in below:
            yield from _keys(child, f"{prefix}{name}.{named}")
        if not below:
            yield prefix + name, section, name


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if annotation is EnvironmentSection:
        yield from map(section_class, ENVIRONMENTS)
    elif annotation is Arm:
        kinds = [arm_kinds(section_of({"name": name})) for name in ENVIRONMENTS]
        yield from dict.fromkeys(kind for offered in kinds for kind in offered.values())
    elif isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)
