"""One session with an OpenEnv server, over its websocket: a reset, then steps."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from retroformer.errors import EnvironmentFailure
from retroformer.secrets.redaction import redacted
from retroformer.secrets.url import SecretUrl

_LARGEST_BYTES = 16 << 20
_OF_THE_AGENT = ("VALIDATION_ERROR", "INVALID_JSON")
"""Codes of errors that an action causes."""


class Answer(BaseModel):
    """What the server says to a reset or a step."""

    observation: dict[str, Any]
    reward: float | None = None
    done: bool = False


class RefusedAction(Exception):
    """The action does not fit the server's schema: the agent's own failure. The text is the server's."""


class Session:
    """An open session.

    Raises:
        EnvironmentFailure: the server cannot be reached.
    """

    def __init__(self, url: SecretUrl, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        address = url.secret_url().rstrip("/")
        scheme, _, rest = address.partition("://")
        socket = f"{'wss' if scheme in ('https', 'wss') else 'ws'}://{rest}/ws"
        try:
            self._socket = connect(
                socket, open_timeout=timeout_seconds, close_timeout=1, max_size=_LARGEST_BYTES, proxy=None
            )
        except (OSError, WebSocketException, ValueError) as error:
            raise EnvironmentFailure(f"The OpenEnv server {url} cannot be reached: {_reason(error)}.") from None

    def reset(self, arguments: Mapping[str, Any]) -> Answer:
        """Begin an episode. Raises EnvironmentFailure."""
        try:
            return self._ask({"type": "reset", "data": dict(arguments)})
        except RefusedAction as refusal:
            raise EnvironmentFailure(f"The OpenEnv server refused the reset: {refusal}") from None

    def step(self, action: Mapping[str, Any]) -> Answer:
        """Do an action. Raises RefusedAction; EnvironmentFailure."""
        return self._ask({"type": "step", "data": dict(action)})

    def close(self) -> None:
        """End the session."""
        self._socket.close()

    def _ask(self, message: Mapping[str, Any]) -> Answer:
        try:
            self._socket.send(json.dumps(message))
            answer = json.loads(self._socket.recv(timeout=self._timeout))
        except TimeoutError:
            raise EnvironmentFailure(f"The OpenEnv server gave no answer within {self._timeout:g} s.") from None
        except (OSError, WebSocketException, ValueError) as error:
            raise EnvironmentFailure(f"The OpenEnv server ended the session: {_reason(error)}.") from None
        kind, data = (answer.get("type"), answer.get("data")) if isinstance(answer, dict) else (None, None)
        if kind == "error" and isinstance(data, dict):
            said = f"{data.get('message', '')} {_faults(data.get('errors'))}".strip()
            if data.get("code") in _OF_THE_AGENT:
                raise RefusedAction(said)
            raise EnvironmentFailure(f"The OpenEnv server reports {data.get('code')}: {redacted(said)[:500]}")
        try:
            return Answer.model_validate(data)
        except ValidationError:
            raise EnvironmentFailure("The OpenEnv server answered something that is not an observation.") from None


def _faults(errors: Any) -> str:
    """Return the faults of an action by field."""
    faults = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    return "; ".join(f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg', '')}" for fault in faults)


def _reason(error: BaseException) -> str:
    return redacted(" ".join(str(error).split()) or type(error).__name__)[:300]
