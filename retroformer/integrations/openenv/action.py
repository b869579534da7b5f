"""Actions of an OpenEnv server: how the text of an actor becomes one, by the server's JSON schema of actions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from retroformer.errors import ConfigError
from retroformer.files.bounded import MOST_LEVELS, json_fault
from retroformer.files.text import has_surrogate

_UNIONS = ("anyOf", "oneOf", "allOf")
_OWN_FIELD = "metadata"
"""Field of every action that belongs to OpenEnv, not to the environment."""


class RefusedAction(Exception):
    """The action does not fit the server's schema: the agent's own failure. The text says why, to the agent."""

    def __init__(self, why: str, *, session_ended: bool = False) -> None:
        super().__init__(why)
        self.session_ended = session_ended
        """True if the server has closed the session, so that there is no next action."""


@dataclass(frozen=True)
class ActionForm:
    """Form of the actions of one server."""

    fields: Mapping[str, Mapping[str, Any]]
    """JSON schema of each field."""
    required: tuple[str, ...]
    field: str | None
    """Field of the actor's text; None if an action is always a JSON object."""
    takes_text: bool
    """True if that field holds any text, so that JSON in it stays text."""

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any], field: str | None) -> "ActionForm":
        """Return the form that the server's JSON schema of an action describes.

        `field` is the one that the config names for the actor's text; None: the only required one.

        Raises:
            ConfigError: the field that the config names cannot be the only one of an action.
        """
        fields = {name: value for name, value in schema.get("properties", {}).items() if name != _OWN_FIELD}
        required = tuple(map(str, schema.get("required", ())))
        if field is not None:
            _check_named(field, fields, required, schema)
        elif len(required) == 1:
            field = required[0]
        takes_text = field is not None and _takes_text(fields.get(field, {}), schema.get("$defs", {}))
        return cls(fields, required, field, takes_text)

    def action(self, text: str) -> dict[str, Any]:
        """Return the action that a text describes. Raises RefusedAction."""
        if self.field is not None and self.takes_text:
            if has_surrogate(text):
                raise RefusedAction("it holds half of a surrogate pair, which is not a character.")
            return {self.field: text}
        try:
            value = json.loads(text)
        except RecursionError:
            raise RefusedAction(f"it is nested deeper than {MOST_LEVELS} levels.") from None
        except ValueError:
            value = text
        if fault := json_fault(value, text):
            raise RefusedAction(f"it {fault}.")
        if isinstance(value, dict):
            return value
        if self.field is None:
            raise RefusedAction(self.wanted)
        return {self.field: value}

    @property
    def wanted(self) -> str:
        """Sentence on the JSON object that an action is."""
        named = {
            name: f"{name} ({schema['type']})" if isinstance(schema.get("type"), str) else name
            for name, schema in self.fields.items()
        }
        parts = list[str]()
        for kind, is_required in (("the field", True), ("the optional field", False)):
            if names := [words for name, words in named.items() if (name in self.required) is is_required]:
                parts.append(f"{kind}{'s' * (len(names) > 1)} {', '.join(names)}")
        return f"an action is a JSON object with {' and '.join(parts) or 'no fields'}."


def _check_named(field: str, fields: Mapping[str, Any], required: tuple[str, ...], schema: Mapping[str, Any]) -> None:
    """Check that an action can have the field, and need no other. Raises ConfigError."""
    if field not in fields and not schema.get("additionalProperties"):
        raise ConfigError(
            f"An action of this OpenEnv server has no field {field!r}, only {', '.join(fields) or 'none'}: correct "
            "environment.action."
        )
    if others := [name for name in required if name != field]:
        raise ConfigError(
            f"An action of this OpenEnv server requires {', '.join(others)} besides {field!r}: remove "
            "environment.action, so that the actor writes each action as a JSON object."
        )


def _takes_text(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Return True if a text fits a schema. Raises RecursionError if its references go round in a circle."""
    if "$ref" in schema:
        return _takes_text(definitions[str(schema["$ref"]).rpartition("/")[2]], definitions)
    for union in _UNIONS:
        if union in schema:
            return any(_takes_text(option, definitions) for option in schema[union])
    if "type" not in schema:
        values = [schema["const"]] if "const" in schema else schema.get("enum", [""])
        return any(isinstance(value, str) for value in values)
    return "string" in (schema["type"] if isinstance(schema["type"], list) else [schema["type"]])
