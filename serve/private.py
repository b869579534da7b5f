"""Secrets that a supervisor sends to its processes through a pipe, since anyone can read a command line."""

import contextlib
import os

from pydantic import BaseModel, ConfigDict


class Private(BaseModel):
    """Secrets of one run of an endpoint; they stay the same when its processes are restarted."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    worker_key: str
    """Key that the API server and the supervisor send to the worker, which refuses all other requests."""
    marker: str
    """Part of the markers between the messages of a chat; see `serve.api.marked_prompt`."""
    api_keys: tuple[str, ...] = ()
    """API keys that clients may use; empty if the endpoint requires none."""


def send_private(descriptor: int, content: str) -> None:
    """Write all of `content` and close the pipe. A reader that has already died is not an error here."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
        pipe.write(content.encode())


def read_private(descriptor: int) -> Private:
    """Read what the supervisor wrote, and close the pipe."""
    with os.fdopen(descriptor, "rb") as pipe:
        return Private.model_validate_json(pipe.read())
