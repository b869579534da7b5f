"""Reads an experiment config: a YAML file, its domains, and `key=value` overrides such as `eval.tasks=10`."""

import contextlib
import difflib
import os
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from retroformer.agents.arms.arm import Arm
from retroformer.config.experiment import Domain, Experiment
from retroformer.config.sections.eval import arm_kinds
from retroformer.endpoint.secrets.redaction import keep_secret
from retroformer.environments.registry import section_class, section_of
from retroformer.errors import ConfigError, MissingInput
from retroformer.files.bounded import MOST_LEVELS, YamlLimitError, parse_yaml, read_yaml
from retroformer.files.text import has_surrogate
from retroformer.method.prompts import is_pack_file

_SHOWN_CHARACTERS = 200
"""Largest number of characters of a wrong value that a message shows."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DOMAIN_REFLECTOR_SETTINGS = {"prompt_characters", "view"}
"""Reflector settings that may differ between domains: how it sees a failure. The rest belongs to the one reflector."""


@dataclass(frozen=True)
class Config:
    """An experiment with the path and overrides that it was read from, from which its server reads it, too."""

    path: Path
    overrides: tuple[str, ...]
    experiment: Experiment


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Load the experiment that a YAML file and `key=value` overrides describe.

    Raises MissingInput, or ConfigError, whose message lists all faults, also if one of several domains is to be chosen.
    """
    experiment, *others = load_domains(path, overrides)
    if others:
        names = " or ".join(f"domain={name}" for name in experiment.domains)
        raise ConfigError(f"{path} has several domains, and this command works on one: add {names} to the command.")
    return experiment


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Load the config of one experiment with its path and overrides. Raises as `load` does."""
    return Config(path, tuple(overrides), load(path, overrides))


def load_configs(path: Path, overrides: Sequence[str]) -> tuple[Config, ...]:
    """Load each domain, with the override by which its own server reads the same domain. Raises as `load` does."""
    return tuple(
        Config(path, (*overrides, *((f"domain={domain.domain}",) if domain.domain else ())), domain)
        for domain in load_domains(path, overrides)
    )


def load_domains(path: Path, overrides: Sequence[str] = ()) -> tuple[Experiment, ...]:
    """Load the experiment of each domain, or of the one that `domain` names. Raises MissingInput, ConfigError.

    A config without domains is one experiment.
    """
    config = _read(path)
    domains = _split_domains(config)
    if not domains:
        config.pop("domains", None)
        experiment = _experiment(path, config, _domain_overrides("", (), overrides))
        if experiment.domain:
            raise ConfigError(f"{path} has no domains: leave domain={experiment.domain} out.")
        return (experiment,)
    experiments = {
        name: _experiment(path, own, _domain_overrides(name, tuple(domains), overrides), f", domain {name},")
        for name, own in domains.items()
    }
    return _join_domains(path, experiments)


def _read(path: Path) -> dict[str, Any]:
    """Read a config. Raises MissingInput, ConfigError."""
    try:
        config = read_yaml(path)
    except MissingInput as error:
        raise ConfigError(f"{path} is not a YAML file: {error}") from None
    except FileNotFoundError:
        raise MissingInput(f"No experiment config at {str(path)!r}: {_instead_of(path)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise ConfigError(
            f"{path} does not describe an experiment: expected keys and values, found {type(config).__name__}."
        )
    return config


def _split_domains(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the config of each domain by name, before any override; {} if there are none. Raises ConfigError."""
    domains = config.get("domains") or {}
    if not isinstance(domains, dict):
        raise ConfigError(f"domains: expected names, each with the sections of a domain, found {domains!r:.200}.")
    shared = {name: value for name, value in config.items() if name != "domains"}
    for name, sections in domains.items():
        _check_domain(name, sections)
    return {name: _merged(shared, sections) for name, sections in domains.items()}


def _domain_overrides(domain: str, domains: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides that hold for a domain, without the prefix `domains.NAME.`. Raises ConfigError."""
    chosen = []
    for override in overrides:
        key, equals, value = override.partition("=")
        section, *path = key.split(".", 2)
        if section != "domains":
            chosen.append(override)
            continue
        if len(path) < 2 or path[0] not in domains:
            raise ConfigError(
                f"{override!r:.200} cannot be applied: write domains.NAME.key=value with one of the domains "
                f"{', '.join(domains) or '(this config has none)'}."
            )
        name, entry = path
        _check_domain(name, {entry.partition(".")[0]: None})
        if name == domain:
            chosen.append(f"{entry}{equals}{value}")
    return chosen


def _join_domains(path: Path, experiments: dict[str, Experiment]) -> tuple[Experiment, ...]:
    """Return the experiments, each with the sections of the others; only the one that `domain` names, if it does.

    Raises ConfigError if there is no such domain, or if two domains do not have the same reflector.
    """
    first, *others = experiments
    for name in others:
        own = [experiments[domain].reflector.model_dump(exclude=_DOMAIN_REFLECTOR_SETTINGS) for domain in (first, name)]
        if changed := [key for key in own[0] if own[0][key] != own[1][key]]:
            raise ConfigError(
                f"domains.{name}.reflector.{changed[0]}: all domains train and ask one reflector, and {first} has "
                f"another value; set it once for all domains. A domain can have its own "
                f"{' and '.join(sorted(_DOMAIN_REFLECTOR_SETTINGS))}."
            )
    domains = {
        name: Domain(**{section: getattr(experiment, section) for section in Domain.model_fields})
        for name, experiment in experiments.items()
    }
    chosen = experiments[first].domain
    if chosen and chosen not in domains:
        raise ConfigError(f"domain={chosen}: {path} has the domains {', '.join(domains)}; name one of them.")
    return tuple(
        experiment.model_copy(update={"domain": name, "domains": domains})
        for name, experiment in experiments.items()
        if chosen in ("", name)
    )


def _check_domain(name: Any, sections: Any) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"domains.{name!s:.200}: a domain's name has letters, digits, `_` and `-` only; give it another."
        )
    if not isinstance(sections, dict):
        raise ConfigError(f"domains.{name}: expected the sections of a domain, found {sections!r:.200}.")
    if shared := [key for key in sections if key not in Domain.model_fields]:
        raise ConfigError(
            f"domains.{name}.{shared[0]!s:.200}: a domain has only the sections {', '.join(Domain.model_fields)}; "
            "everything else is shared, so set it once, outside domains."
        )


def _merged(shared: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return `shared` with the entries of `own` in their place, at every depth."""
    merged = deepcopy(shared)
    for name, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merged(merged[name], value) if both else deepcopy(value)
    return merged


def _experiment(path: Path, config: dict[str, Any], overrides: Sequence[str], domain: str = "") -> Experiment:
    """Apply the overrides to a config and validate it. `domain` names it in messages. Raises ConfigError."""
    for override in overrides:
        _override(config, override)
    _find_prompts_beside(path, config)
    try:
        experiment = Experiment.model_validate(config)
    except ValidationError as error:
        faults = "\n".join(f"  {_fault(fault, config)}" for fault in error.errors())
        raise ConfigError(f"{path}{domain} does not describe an experiment:\n{faults}") from None
    for variable in experiment.key_variables:
        for key in os.environ.get(variable, "").split(","):
            keep_secret(key.strip())
    return experiment


def _instead_of(path: Path) -> str:
    """Return what to do without a config at `path`: name a close one, or one of ./configs or else of the package."""
    folder = Path("configs") if Path("configs").is_dir() else Path(str(resources.files("retroformer") / "configs"))
    configs = sorted({*path.parent.glob("*.yaml"), *folder.rglob("*.yaml")})
    close = difflib.get_close_matches(path.stem, {config.stem for config in configs})
    if shown := [str(config) for config in configs if config.stem in close]:
        return f"did you mean {' or '.join(shown)}?"
    folders = ", ".join(sorted({str(config.parent) for config in configs}))
    return f"name a YAML file{folders and f' of {folders}'}, or write one with `retroformer init FOLDER`."


def _override(config: dict[str, Any], override: str) -> None:
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
    section = config
    for name in path:
        inner = section.get(name)
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(f"{override!r} cannot be applied: {name!r} is a value, not a section.")
        # A copy, because an alias of the file may put one section in several places.
        section[name] = dict(inner or {})
        section = section[name]
    try:
        section[last] = parse_yaml(value)
    except YamlLimitError as error:
        raise ConfigError(f"The override {_shortened(override)!r} has {error.problem}: simplify it.") from None
    except yaml.YAMLError:
        section[last] = value


def _find_prompts_beside(path: Path, config: dict[str, Any]) -> None:
    """Resolve `prompts` of the actor and of arms beside the config unless the file is in the current directory."""
    evaluation = config.get("eval")
    arms = evaluation.get("arms") if isinstance(evaluation, dict) else None
    for section in (config.get("actor"), *(arms.values() if isinstance(arms, dict) else ())):
        if isinstance(section, dict) and isinstance(section.get("prompts"), str):
            section["prompts"] = _found_beside(path, section["prompts"])


def _found_beside(path: Path, prompts: str) -> str:
    """Return the path of a prompt pack beside the config at `path`; else `prompts` itself."""
    if not is_pack_file(prompts):
        return prompts
    here, beside = Path.cwd(), path.parent.resolve() / prompts
    # An impossible file name, such as one of 5,000 characters, is refused later, when the pack is read.
    with contextlib.suppress(OSError, ValueError):
        if not Path(prompts).exists() and beside.exists():
            # Relative to the current directory: facts must not depend on how the config's path was written.
            return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
    return prompts


def _fault(fault: Any, config: dict[str, Any]) -> str:
    location = [str(part) for part in fault["loc"]]
    message = fault["msg"].removeprefix("Value error, ").removesuffix(".") + "."
    if fault["type"] == "extra_forbidden":
        message += _meant(location, config)
    elif fault["type"] not in ("missing", "environment", "arm", "address"):
        message += f" Found {_shortened(repr(fault['input']))}."
    return f"{'.'.join(location)}: {message}"


def _meant(location: Sequence[str], config: dict[str, Any]) -> str:
    """Return the sentence that follows the refusal of an unknown key."""
    key = location[-1]
    if location[:2] == ["eval", "arms"]:
        kinds = arm_kinds(section_of(config["environment"]))
        if others := [kind for kind, arm in kinds.items() if key in arm.model_fields]:
            return f" It is a setting of kind {' or '.join(others)}."
    allowed_keys = _allowed_keys(location[:-1], config)
    close = difflib.get_close_matches(key, allowed_keys, n=1, cutoff=0.5)
    return f" Did you mean `{close[0]}`?" if close else f" Allowed keys: {', '.join(allowed_keys)}."


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _allowed_keys(location: Sequence[str], config: dict[str, Any]) -> list[str]:
    """Return the field names of the section at `location`."""
    if location[:2] == ["eval", "arms"]:
        kind = config["eval"]["arms"][location[2]].get("kind")
        return sorted(arm_kinds(section_of(config["environment"])).get(kind, Arm).model_fields)
    sections: list[type[BaseModel]] = [Experiment]
    if location[:1] == ["environment"]:
        sections, location = [section_class(config["environment"]["name"])], location[1:]
    for name in location:
        fields = [section.model_fields[name] for section in sections if name in section.model_fields]
        sections = [model for field in fields for model in _models_in(field.annotation)] or sections
    return sorted({name for section in sections for name in section.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
