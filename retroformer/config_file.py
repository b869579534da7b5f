"""Reads an experiment page: a YAML file and `key=value` overrides with dotted keys, as in `run=try2 eval.tasks=10`."""

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from retroformer.config import Experiment
from retroformer.environments import section_class
from retroformer.errors import ConfigError, MissingInput
from retroformer.redaction import keep_secret


class _NothingTwice(yaml.SafeLoader):
    """Of two equal keys YAML's own loader drops the first in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Raises yaml.YAMLError: a key comes twice."""
        seen = set[str]()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} comes twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """The experiment that a YAML file and `key=value` overrides describe.

    Raises:
        MissingInput: no such file.
        ConfigError: the page is not YAML or does not describe an experiment; all faults in one message.
    """
    try:
        page = yaml.load(path.read_text(), _NothingTwice)
    except FileNotFoundError:
        raise MissingInput(
            f"No experiment page at {str(path)!r}: name a YAML file such as configs/demo.yaml."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError) as error:
        raise ConfigError(f"{path} is not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(page, dict):
        raise ConfigError(
            f"{path} does not describe an experiment: expected keys and values, found {type(page).__name__}."
        )
    for override in overrides:
        _override(page, override)
    try:
        experiment = Experiment.model_validate(page)
    except ValidationError as error:
        faults = "\n".join(f"  {_fault(fault, page)}" for fault in error.errors())
        raise ConfigError(f"{path} does not describe an experiment:\n{faults}") from None
    _keep_keys_secret(experiment)
    return experiment


def _keep_keys_secret(section: object) -> None:
    """Hide the keys in all environment variables that an experiment names, in whatever this process writes."""
    if isinstance(section, BaseModel):
        for name, value in section:
            if name == "api_key_env" and value:
                for key in os.environ.get(value, "").split(","):
                    keep_secret(key.strip())
            else:
                _keep_keys_secret(value)
    elif isinstance(section, dict):
        for value in section.values():
            _keep_keys_secret(value)


def _override(page: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"{override!r} is not an override: write key=value, such as run=try2 or environment.split=train."
        )
    *path, last = key.split(".")
    section = page
    for name in path:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise ConfigError(f"{override!r} cannot be applied: {name!r} is a value, not a section.")
    try:
        section[last] = yaml.safe_load(value)
    except yaml.YAMLError:
        section[last] = value


def _fault(fault: Any, page: dict[str, Any]) -> str:
    location = [str(part) for part in fault["loc"]]
    message = fault["msg"].removesuffix(".") + "."
    if fault["type"] == "extra_forbidden":
        known = _known_keys(location[:-1], page)
        close = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        message += f" Did you mean `{close[0]}`?" if close else f" Known here: {', '.join(known)}."
    elif fault["type"] not in ("missing", "environment"):
        message += f" Found {fault['input']!r}."
    return f"{'.'.join(location)}: {message}"


def _known_keys(location: Sequence[str], page: dict[str, Any]) -> list[str]:
    """Names of the fields of the section at `location`."""
    if location == ["environment"]:
        return sorted(section_class(page["environment"]["name"]).model_fields)
    sections: list[type[BaseModel]] = [Experiment]
    for name in location:
        found: list[type[BaseModel]] = []
        for section in sections:
            field = section.model_fields.get(name)
            found += _models_in(field.annotation) if field else []
        sections = found or sections
    return sorted({name for section in sections for name in section.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
