"""What a supervisor tells its processes in private: through a pipe, since anyone can read a command line."""

import contextlib
import os

from pydantic import BaseModel, ConfigDict


class Private(BaseModel):
    """The secrets of one run of an endpoint; they survive a restart of its processes."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    worker_key: str
    """The API server and the supervisor show it to the worker, which answers nobody else."""
    marker: str
    """Part of the markers between the messages of a chat; see `serve.marked_prompt`."""
    api_keys: tuple[str, ...] = ()
    """Those that clients may show; empty where none is asked for."""


def send_private(descriptor: int, content: str) -> None:
    """Write all of `content` and close the pipe. A reader that has died already is no error here."""
    with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
        pipe.write(content.encode())


def read_private(descriptor: int) -> Private:
    """Read what the supervisor wrote, and close the pipe."""
    with os.fdopen(descriptor, "rb") as pipe:
        return Private.model_validate_json(pipe.read())
