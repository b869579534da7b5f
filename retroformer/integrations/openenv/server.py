"""An OpenEnv server: its config section, what it says of itself over HTTP, the form of its actions, and sessions over
its websocket.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, ValidationError
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from retroformer.config.sections.base import Positive
from retroformer.endpoint.http_client import NoAnswer, fetch_now, reason_of, route
from retroformer.endpoint.secrets.redaction import redact
from retroformer.endpoint.secrets.url import HttpUrl, SecretUrl
from retroformer.environments.section import ScaledSection
from retroformer.errors import ConfigError, EnvironmentFailure, ServiceError
from retroformer.files.bounded import MOST_LEVELS, json_fault
from retroformer.files.text import has_surrogate, sha256_of
from retroformer.method.records import Reward

_LARGEST_BYTES = 16 << 20
_INVALID_DATA = "VALIDATION_ERROR"
"""Code of an error in data for one of the server's pydantic models, among them its model of an action."""
_SESSION_OVER = "SESSION_ERROR"
"""Code of an error that ends the session."""
_UNSERIALISABLE = ("unable to serialize", "error serializing")
"""Beginnings of pydantic's messages about a value that JSON cannot hold. The server answers a refused action with the
cause and the input; if one of them has no JSON, such as a validator's ValueError, that answer fails and the session
ends. No other answer to a step fails so: an observation without JSON is an EXECUTION_ERROR, and the session goes on."""

_UNIONS = ("anyOf", "oneOf", "allOf")
_OWN_FIELD = "metadata"
"""Field of every action that belongs to OpenEnv, not to the environment."""


class OpenEnv(ScaledSection):
    packages: ClassVar[tuple[str, ...]] = ("websockets",)
    default_actor: ClassVar[str] = "answer"
    plays_alone: ClassVar[bool] = True
    name: Literal["openenv"] = "openenv"
    url: HttpUrl | None = None
    """Address of the server, such as http://127.0.0.1:8000; training on stored facts needs none."""
    data: Path | None = None
    """JSON lines file with the tasks, one object a line: an `id`, perhaps a `split`, and in `reset` what the server's
    reset takes. Without a file, tasks are seeds."""
    split: str = "train"
    """Tasks to use: those with this `split`, or the seeds of train or held_out."""
    size: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Number of seeds of each split, if there is no file."""
    action: str | None = None
    """Field of the server's action that gets the actor's text; None: the only field that the action requires. If it
    requires several or none, an actor's text is the whole action, a JSON object."""
    observation: str | None = None
    """Field of the observation that the actor sees; None: all of it, as JSON."""
    reward: Literal["sum", "last"] = "sum"
    """The return: the sum of the rewards of all steps, or the last one."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time limit in seconds of each answer of the server; after that the attempt is invalid."""
    max_steps: Positive = 20
    """Number of actions after which an episode is truncated."""

    @property
    def server(self) -> SecretUrl:
        """Address of the server. Raises ConfigError if the config names none."""
        if self.url is None:
            raise ConfigError("There is no OpenEnv server to play with: name its address in environment.url.")
        return self.url

    def address(self, protocol: Literal["http", "ws"]) -> str:
        """Return the server's address with its credentials, for connecting. Raises ConfigError if there is none."""
        scheme, _, rest = self.server.secret_url().rstrip("/").partition("://")
        return f"{protocol}{'s' if scheme in ('https', 'wss') else ''}://{rest}"

    @property
    def longest_step_seconds(self) -> float:
        return 3 * self.timeout_seconds  # The first reset reads the schema, opens a session and begins an episode.

    def score(self, rewards: list[float]) -> float:
        """Return the return of an episode, from 0 to 1."""
        return self.scaled((sum(rewards) if self.reward == "sum" else rewards[-1]) if rewards else self.lowest)


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

        Raises ConfigError: the field that the config names cannot be the only one of an action.
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


def action_form(section: OpenEnv) -> ActionForm:
    """Return the form of the server's actions. Raises ConfigError, EnvironmentFailure."""
    try:
        return ActionForm.of_schema(_get(section, "schema")["action"], section.action)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _missing(section, "schema", f"it cannot be read ({type(error).__name__})") from None


def server_version(section: OpenEnv) -> dict[str, str]:
    """Return the server's name, version and the sha256 of its schemas, a condition of all facts made with it.

    Raises:
        ConfigError: the config names no server.
        ServiceError: the server cannot be asked.
    """
    try:
        about, schemas = _get(section, "metadata", needed=False), _get(section, "schema")
    except EnvironmentFailure as failure:
        raise ServiceError(str(failure)) from None
    words = [str(about[key]) for key in ("name", "version") if about.get(key)]
    return {"server": " ".join([*words, sha256_of(schemas)[:16]])}


def require_server(section: OpenEnv) -> None:
    """Check that the server answers and has the action that the config names. Raises ServiceError, ConfigError."""
    try:
        action_form(section)
        OpenEnvSession(section).close()
    except EnvironmentFailure as failure:
        raise ServiceError(str(failure)) from None


def _get(section: OpenEnv, name: str, *, needed: bool = True) -> Mapping[str, Any]:
    """Return a JSON object that the server has under this name, empty if it has none. Raises EnvironmentFailure."""
    try:
        answer = fetch_now("GET", f"{section.address('http')}/{name}", section.timeout_seconds, largest=_LARGEST_BYTES)
    except NoAnswer as error:
        raise _unreachable(section, error) from None
    if answer.status == HTTPStatus.NOT_FOUND and not needed:
        return {}
    if answer.status != HTTPStatus.OK:
        raise _missing(section, name, f"it answers with HTTP status {answer.status}")
    try:
        value = json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise _missing(section, name, type(error).__name__) from None
    if not isinstance(value, dict):
        raise _missing(section, name, "it is not a JSON object")
    return value


def _missing(section: OpenEnv, name: str, why: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"The OpenEnv server {section.server} gives no /{name}: {why}.")


def _unreachable(section: OpenEnv, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(f"The OpenEnv server {section.server} cannot be reached: {reason_of(error)}.")


class ServerAnswer(BaseModel):
    """Answer of the server to a reset or a step."""

    observation: dict[str, Any]
    reward: Reward | None = None
    done: bool = False


class OpenEnvSession:
    """An open session."""

    def __init__(self, section: OpenEnv) -> None:
        """Open it. Raises EnvironmentFailure; ConfigError if the config names no server."""
        self._timeout = section.timeout_seconds
        address = f"{section.address('ws')}/ws"
        way = route(address)
        try:
            self._socket = connect(
                address,
                open_timeout=self._timeout,
                close_timeout=1,
                max_size=_LARGEST_BYTES,
                proxy=way.proxy,
                ssl=way.trusted if address.startswith("wss:") else None,
            )
        except (OSError, WebSocketException, ValueError) as error:
            raise _unreachable(section, error) from None

    def ask(self, kind: str, data: Mapping[str, Any], action_fields: set[str] | None = None) -> ServerAnswer:
        """Begin an episode (`reset`) with arguments, or do an action (`step`), which has or may have these fields.

        Raises:
            RefusedAction: the server refused the action.
            EnvironmentFailure: the server failed.
        """
        try:
            with suppress(ConnectionClosed):  # The server has said why before it closed.
                self._socket.send(json.dumps({"type": kind, "data": dict(data)}))
            answer = json.loads(self._socket.recv(timeout=self._timeout))
        except TimeoutError:
            raise EnvironmentFailure(f"The OpenEnv server gave no answer within {self._timeout:g} s.") from None
        except RecursionError:
            raise EnvironmentFailure("The OpenEnv server answered JSON that is nested too deeply.") from None
        except (OSError, WebSocketException, ValueError) as error:
            raise EnvironmentFailure(f"The OpenEnv server ended the session: {reason_of(error)}.") from None
        if not (isinstance(answer, dict) and isinstance(answer.get("data"), dict)):
            raise EnvironmentFailure("The OpenEnv server answered something that is no message of OpenEnv.")
        if answer.get("type") == "error":
            raise _error(answer["data"], action_fields)
        try:
            return ServerAnswer.model_validate(answer["data"])
        except ValidationError:
            raise EnvironmentFailure("The OpenEnv server answered something that is not an observation.") from None

    def close(self) -> None:
        """End the session."""
        self._socket.close()


def _error(error: Mapping[str, Any], action_fields: set[str] | None) -> RefusedAction | EnvironmentFailure:
    """Return what an error of the server means: the refusal of an action with these fields, or a failure."""
    message, listed = str(error.get("message", "")), error.get("errors")
    faults = [fault for fault in listed if isinstance(fault, dict)] if isinstance(listed, list) else []
    places = [list(fault.get("loc") or ()) for fault in faults]
    by_field = "; ".join(
        f"{'.'.join(map(str, place))}: {fault.get('msg', '')}" for place, fault in zip(places, faults, strict=True)
    )
    said = f"{message} {by_field}".strip()
    if action_fields is not None:
        if error.get("code") == _SESSION_OVER and message.lower().startswith(_UNSERIALISABLE):
            return RefusedAction("the server cannot say why, and closed the session.", session_ended=True)
        # A fault elsewhere is that of another model, such as an observation that the environment built wrongly.
        if error.get("code") == _INVALID_DATA and all(not place or str(place[0]) in action_fields for place in places):
            return RefusedAction(said)
    return EnvironmentFailure(f"The OpenEnv server reports {error.get('code')}: {redact(said)[:500]}")
