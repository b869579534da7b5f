"""What an OpenEnv server says: of itself over HTTP, and in a session over its websocket, a reset and then steps."""

import json
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import httpx
from pydantic import BaseModel, Field, ValidationError
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from retroformer.endpoint.secrets.redaction import redact
from retroformer.errors import EnvironmentFailure, ServiceError
from retroformer.files.text import sha256_of
from retroformer.integrations.openenv.action import ActionForm, RefusedAction
from retroformer.integrations.openenv.section import OpenEnv

_NOT_FOUND = 404
_LARGEST_BYTES = 16 << 20
_INVALID_DATA = "VALIDATION_ERROR"
"""Code of an error in data for one of the server's pydantic models, among them its model of an action."""
_SESSION_OVER = "SESSION_ERROR"
"""Code of an error that ends the session."""
_UNSERIALISABLE = ("unable to serialize", "error serializing")
"""Beginnings of pydantic's messages about a value that JSON cannot hold. The server answers a refused action with the
cause and the input; if one of them has no JSON, such as a validator's ValueError, that answer fails and the session
ends. No other answer to a step fails so: an observation without JSON is an EXECUTION_ERROR, and the session goes on."""


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
    # Like the session's socket: straight to the server whatever proxy variables say, with the system's certificates.
    client = httpx.Client(timeout=section.timeout_seconds, trust_env=False, verify=ssl.create_default_context())
    try:
        with client:
            answer = client.get(f"{section.address('http')}/{name}")
        if answer.status_code == _NOT_FOUND and not needed:
            return {}
        value = answer.raise_for_status().json()
    except httpx.HTTPStatusError as error:
        raise _missing(section, name, f"it answers with HTTP status {error.response.status_code}") from None
    except httpx.TransportError as error:
        raise _unreachable(section, error) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise _missing(section, name, type(error).__name__) from None
    if not isinstance(value, dict):
        raise _missing(section, name, "it is not a JSON object")
    return value


def _missing(section: OpenEnv, name: str, why: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"The OpenEnv server {section.server} gives no /{name}: {why}.")


def _unreachable(section: OpenEnv, error: Exception) -> EnvironmentFailure:
    return EnvironmentFailure(f"The OpenEnv server {section.server} cannot be reached: {_reason(error)}.")


class ServerAnswer(BaseModel):
    """Answer of the server to a reset or a step."""

    observation: dict[str, Any]
    reward: Annotated[float, Field(allow_inf_nan=False)] | None = None
    done: bool = False


class OpenEnvSession:
    """An open session."""

    def __init__(self, section: OpenEnv) -> None:
        """Open it. Raises EnvironmentFailure; ConfigError if the config names no server."""
        self._timeout = section.timeout_seconds
        address = f"{section.address('ws')}/ws"
        try:
            self._socket = connect(
                address, open_timeout=self._timeout, close_timeout=1, max_size=_LARGEST_BYTES, proxy=None
            )
        except (OSError, WebSocketException, ValueError) as error:
            raise _unreachable(section, error) from None

    def ask(self, kind: str, data: Mapping[str, Any], action_fields: set[str] | None = None) -> ServerAnswer:
        """Begin an episode (`reset`), or do an action (`step`).

        Args:
            kind: kind of the message.
            data: arguments of the reset, or the action.
            action_fields: fields that an action has or may have, which the server can refuse; None: a reset.

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
            raise EnvironmentFailure(f"The OpenEnv server ended the session: {_reason(error)}.") from None
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


def _reason(error: BaseException) -> str:
    return redact(" ".join(str(error).split()) or type(error).__name__)[:300]
