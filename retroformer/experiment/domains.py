"""Splits a config with several domains into one complete config for each.

A domain's config is the shared one with the domain's own entries in place of the shared ones. Overrides hold for every
domain, except those that begin with `domains.NAME.`, and the last of two for the same entry counts.
"""

import re
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from retroformer.errors import ConfigError
from retroformer.experiment.config import Domain, Experiment

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_OWN_OF_REFLECTOR = {"prompt_characters", "view"}
"""Reflector settings that may differ between domains: how it sees a failure. The rest belongs to the one reflector."""


def split_domains(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the config of each domain by name, before any override; {} if the config has no domains.

    Raises:
        ConfigError: a domain has an impossible name, is not a mapping or has an entry that all domains share.
    """
    domains = config.get("domains") or {}
    if not isinstance(domains, dict):
        raise ConfigError(f"domains: expected names, each with the sections of a domain, found {domains!r:.200}.")
    shared = {name: value for name, value in config.items() if name != "domains"}
    for name, sections in domains.items():
        _check(name, sections)
    return {name: _merged(shared, sections) for name, sections in domains.items()}


def overrides_of(domain: str, domains: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return the overrides that hold for a domain, without the prefix `domains.NAME.`.

    Raises:
        ConfigError: an override names no domain of the config, or an entry that all domains share.
    """
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
        _check(name, {entry.partition(".")[0]: None})
        if name == domain:
            chosen.append(f"{entry}{equals}{value}")
    return chosen


def join_domains(path: Path, experiments: dict[str, Experiment]) -> tuple[Experiment, ...]:
    """Return the experiments, each of which also has the sections of the others; only the one that `domain` names.

    Raises:
        ConfigError: there is no such domain, or two domains do not have the same reflector.
    """
    first, *others = experiments
    for name in others:
        own = [experiments[domain].reflector.model_dump(exclude=_OWN_OF_REFLECTOR) for domain in (first, name)]
        if changed := [key for key in own[0] if own[0][key] != own[1][key]]:
            raise ConfigError(
                f"domains.{name}.reflector.{changed[0]}: all domains train and ask one reflector, and {first} has "
                f"another value; set it once for all domains. A domain can have its own "
                f"{' and '.join(sorted(_OWN_OF_REFLECTOR))}."
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


def _check(name: Any, sections: Any) -> None:
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
