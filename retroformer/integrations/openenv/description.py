"""Description that an OpenEnv server gives of itself over HTTP: its schemas, its name and its version."""

import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from retroformer.errors import EnvironmentFailure, ServiceError
from retroformer.files.canonical import sha256_of
from retroformer.integrations.openenv.action import ActionForm
from retroformer.integrations.openenv.section import OpenEnv
from retroformer.secrets.redaction import redacted

_NOT_THERE = 404


def action_form(section: OpenEnv) -> ActionForm:
    """Return the form of the server's actions. Raises ConfigError, EnvironmentFailure."""
    try:
        return ActionForm.of_schema(_get(section, "schema")["action"], section.action)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _failure(section, "schema", f"it cannot be read ({type(error).__name__})") from None


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


def _get(section: OpenEnv, name: str, *, needed: bool = True) -> Mapping[str, Any]:
    """Return a JSON object that the server has under this name, empty if it has none. Raises EnvironmentFailure."""
    try:
        # Like the session's socket: straight to the server whatever proxy variables say, with the system's
        # certificates.
        with httpx.Client(
            timeout=section.timeout_seconds, trust_env=False, verify=ssl.create_default_context()
        ) as client:
            answer = client.get(f"{section.address('http')}/{name}")
        if answer.status_code == _NOT_THERE and not needed:
            return {}
        value = answer.raise_for_status().json()
    except httpx.HTTPStatusError as error:
        raise _failure(section, name, f"it answers with HTTP status {error.response.status_code}") from None
    except httpx.TransportError as error:
        why = redacted(str(error) or type(error).__name__)[:300]
        raise EnvironmentFailure(f"The OpenEnv server {section.server} cannot be reached: {why}.") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError) as error:
        raise _failure(section, name, type(error).__name__) from None
    if not isinstance(value, dict):
        raise _failure(section, name, "it is not a JSON object")
    return value


def _failure(section: OpenEnv, name: str, why: str) -> EnvironmentFailure:
    return EnvironmentFailure(f"The OpenEnv server {section.server} gives no /{name}: {why}.")
