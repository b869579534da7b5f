"""Reads an experiment page: a YAML file and `key=value` overrides with dotted keys, as in `run=try2 eval.tasks=10`.

A file or an override of more values or levels than `bounded_yaml` allows is refused before it is validated.
"""

import contextlib
import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from retroformer.bounded_file import has_surrogate
from retroformer.bounded_json import MOST_LEVELS
from retroformer.bounded_yaml import BoundedLoader, YamlLimitError, parse_yaml, read_yaml
from retroformer.config import Experiment
from retroformer.environments import section_class
from retroformer.errors import ConfigError, MissingInput
from retroformer.prompts import is_pack_file
from retroformer.redaction import keep_secret

_SHOWN_CHARACTERS = 200
"""Of a wrong value in a message."""


class _NothingTwice(BoundedLoader):
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
        page = read_yaml(path, _NothingTwice)
    except MissingInput as error:
        raise ConfigError(f"{path} is not a YAML file: {error}") from None
    except FileNotFoundError:
        raise MissingInput(
            f"No experiment page at {str(path)!r}: name a YAML file such as configs/demo.yaml."
        ) from None
    except YamlLimitError as error:
        raise ConfigError(f"{path} is refused:{_place(error)} it has {error.problem}: simplify it.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(page, dict):
        raise ConfigError(
            f"{path} does not describe an experiment: expected keys and values, found {type(page).__name__}."
        )
    for override in overrides:
        _override(page, override)
    _find_prompts_beside(path, page)
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
    if has_surrogate(override):
        raise ConfigError(f"{override!r} is not UTF-8: write the override in that encoding.")
    *path, last = key.split(".")
    if len(path) > MOST_LEVELS:
        raise ConfigError(
            f"The override {_shortened(key)!r} has more than {MOST_LEVELS} levels: no config has so many."
        )
    section = page
    for name in path:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            raise ConfigError(f"{override!r} cannot be applied: {name!r} is a value, not a section.")
    try:
        section[last] = parse_yaml(value)
    except YamlLimitError as error:
        raise ConfigError(f"The override {_shortened(override)!r} has {error.problem}: simplify it.") from None
    except yaml.YAMLError:
        section[last] = value


def _find_prompts_beside(path: Path, page: dict[str, Any]) -> None:
    """Let `actor.prompts` name a file beside the config, too; one where the command runs comes first."""
    actor = page.get("actor")
    if not isinstance(actor, dict):
        return
    prompts = actor.get("prompts")
    if not isinstance(prompts, str) or not is_pack_file(prompts):
        return
    here, beside = Path.cwd(), path.parent.resolve() / prompts
    # A name that no file can have, such as one of 5,000 characters, is refused where the pack is read.
    with contextlib.suppress(OSError, ValueError):
        if not Path(prompts).exists() and beside.exists():
            # Named from where the command runs: the facts must not depend on how the config's path was written.
            found = beside.relative_to(here) if beside.is_relative_to(here) else beside
            page["actor"] = actor | {"prompts": str(found)}


def _fault(fault: Any, page: dict[str, Any]) -> str:
    location = [str(part) for part in fault["loc"]]
    message = fault["msg"].removesuffix(".") + "."
    if fault["type"] == "extra_forbidden":
        known = _known_keys(location[:-1], page)
        close = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        message += f" Did you mean `{close[0]}`?" if close else f" Known here: {', '.join(known)}."
    elif fault["type"] not in ("missing", "environment"):
        message += f" Found {_shortened(repr(fault['input']))}."
    return f"{'.'.join(location)}: {message}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _place(error: yaml.MarkedYAMLError) -> str:
    return f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""


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
