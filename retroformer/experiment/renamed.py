"""Reads configs of the previous release: keys that have another name now, and keys that became constants.

Each old key is accepted for one release, with a warning that says what to write. Then its entry here can go. Values of
removed keys that identify stored facts stay where those facts are compared: `EnvironmentSection.constants`,
`eval.play.arms` and `train.stage_kinds`.
"""

import logging
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from retroformer.errors import ConfigError

_log = logging.getLogger(__name__)

RENAMED = {"eval.retrieval.days": "eval.retrieval_days"}
"""New names of keys, by their old names; both are in the same section or in one below it."""

_SECTION_WITHOUT_KEYS = "eval.retrieval"


class Removed(NamedTuple):
    """A key that no config can set any more."""

    value: float | None
    """The only value it would have now; None: it never changed a result, so any value is accepted."""
    instead: str
    """What to do in its place."""
    environment: str | None = None
    """Environment whose key it was; None: the key is not of an environment."""


REMOVED = {
    "collect.skip": Removed(
        0, "collecting starts with the first task of the split, and collectors that share a store divide its tasks"
    ),
    "environment.per_product": Removed(5, "the split `all` has every goal", "webshop"),
    "eval.retrieval.exploration": Removed(0.3, "change EXPLORATION in retroformer/agents/retrieval.py"),
    "loop.environment_processes": Removed(None, "their number follows from the CPU cores and loop.concurrency"),
    "serve.body_bytes": Removed(4_000_000, "change BODY_BYTES in serve/api/bounds.py"),
    "train.actor.actions": Removed(20, "change DEMONSTRATED_ACTIONS in train/stage_kinds.py"),
    "train.ppo.value_weight": Removed(0.1, "change VALUE_WEIGHT in train/stage_kinds.py"),
}
"""Removed keys by name."""


def rename_keys(config: dict[str, Any], *, replace: bool = False) -> None:
    """Move the values of old keys to the new ones, in place, with a warning for each.

    Args:
        config: a config as it was read.
        replace: whether an old key's value takes the place of the new key's, as for an override that came later.

    Raises:
        ConfigError: an old and its new key are both there, and `replace` is false.
    """
    for old, new in RENAMED.items():
        section, name = _section_of(config, old)
        target, new_name = _section_of(config, new)
        if name not in section:
            continue
        if new_name in target and not replace:
            raise ConfigError(f"{old} is called {new} now, and this config has both: delete {old}.")
        target[new_name] = section.pop(name)
        _log.warning("%s is called %s now: rename it, as the next release does not know the old name.", old, new)


def drop_removed_keys(config: dict[str, Any]) -> None:
    """Delete removed keys, in place, with a warning for each.

    Raises:
        ConfigError: one has another value than the constant in its place.
    """
    for key, removed in REMOVED.items():
        section, name = _section_of(config, key)
        if name not in section or removed.environment not in (None, section.get("name")):
            continue
        value = section.pop(name)
        if removed.value is None:
            _log.warning("%s has no effect any more: delete it; %s.", key, removed.instead)
        elif _is_equal(value, removed.value):
            _log.warning("%s can no longer be set and is always %s: delete it.", key, removed.value)
        else:
            raise ConfigError(
                f"{key} can no longer be set and is always {removed.value}, but this config has {value!r:.200}: "
                f"delete the key; {removed.instead}."
            )
    section, name = _section_of(config, _SECTION_WITHOUT_KEYS)
    if name in section and not section[name]:
        del section[name]


def _section_of(config: dict[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return the section that a key belongs to, empty if the config does not have it, and the key's name in it."""
    *path, name = key.split(".")
    section: Any = config
    for part in path:
        section = section.get(part) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}, name


def _is_equal(value: object, constant: float) -> bool:
    """Return True if a config's value means this number; YAML reads 1e-1 as text, which configs may use."""
    try:
        return TypeAdapter(float).validate_python(value) == constant
    except ValidationError:
        return False
