"""Errors that end a command with one sentence: what is wrong, where, and what to do.

    RetroformerError
    ├── ConfigError            (ValueError)
    ├── MissingInput           (FileNotFoundError)
    ├── UnknownTask            (LookupError)
    ├── DamagedFile            (ValueError)
    ├── NotFinite              (ArithmeticError)
    ├── ProvenanceError        (ValueError)
    ├── ServiceError           (RuntimeError)
    ├── StoreError             (OSError)
    ├── BudgetExhausted        (RuntimeError)
    └── InfrastructureFailure  (RuntimeError)
        ├── EndpointFailure    (ConnectionError)
        │   ├── EndpointBusy
        │   └── EndpointRefusal
        └── EnvironmentFailure (RuntimeError)

An infrastructure failure inside a rollout is data: it is stored with its cause, counted and retried. Everything else
stops the stage, which ends with the sentence and the error's exit status, usually 1. A bug still shows its traceback.
No sentence holds a password or an API key: registered secrets are hidden when an error is created.
"""

import errno
import io
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from retroformer.endpoint.secrets.redaction import guard_output, redact

if TYPE_CHECKING:
    from retroformer.method.records import Usage


STOPPED_STATUS = os.EX_TEMPFAIL
"""Exit status of a stage that a scheduler stopped and that has saved its work: start the same command again."""


class RetroformerError(Exception):
    """Base of every error that Retroformer raises on purpose."""

    exit_status = 1
    """Exit status of a command that this error ends."""

    def __init__(self, *words: object) -> None:
        super().__init__(*(redact(word) if isinstance(word, str) else word for word in words))


class ConfigError(RetroformerError, ValueError):
    """The experiment config, or a key=value on the command line, is wrong."""


class MissingInput(RetroformerError, FileNotFoundError):
    """A file or fact of an earlier stage is missing; the message names the command that makes it."""


class UnknownTask(RetroformerError, LookupError):
    """There is no task of this id in this split."""


class DamagedFile(RetroformerError, ValueError):
    """A file that training wrote or reads is cut short or altered; the message says how to replace it."""


class NotFinite(RetroformerError, ArithmeticError):
    """A weight, loss or gradient is infinite or not a number; training on would spoil every weight."""


class ProvenanceError(RetroformerError, ValueError):
    """The served model is not the one that was asked for."""


class ServiceError(RetroformerError, RuntimeError):
    """A server could not start, or its port is taken."""


class StoreError(RetroformerError, OSError):
    """The store cannot be read or written."""


class BudgetExhausted(RetroformerError, RuntimeError):
    """The token or money budget of the run is spent."""


class InfrastructureFailure(RetroformerError, RuntimeError):
    """The attempt could not be made; it becomes an invalid outcome, never a return of 0."""

    usage: "Usage | None" = None
    """Usage that was paid for although the attempt failed; None if there was none. Read by `usage_of`."""


class EndpointFailure(InfrastructureFailure, ConnectionError):
    """A model endpoint refused, hung or answered garbage.

    `usage` holds the tokens that the server reported with a bad answer. If the answer was lost after the request had
    been sent, it holds the call and its prompt, estimated at four characters per token.
    """

    def __init__(self, *words: object, usage: "Usage | None" = None) -> None:
        super().__init__(*words)
        self.usage = usage


class EndpointBusy(EndpointFailure):
    """The endpoint requests a longer pause (Retry-After) than a call may take: come back later."""

    def __init__(self, *words: object, retry_after_seconds: float, usage: "Usage | None" = None) -> None:
        super().__init__(*words, usage=usage)
        self.retry_after_seconds = retry_after_seconds


class EndpointRefusal(EndpointFailure):
    """The endpoint does not accept the key, the account or the model: no other call can succeed either."""


class EnvironmentFailure(InfrastructureFailure):
    """An environment died, hung or could not load its task."""


_WRITE_ERRORS = {
    errno.ENOSPC: "The disk is full ({where}): free space",
    errno.EDQUOT: "The quota of disk space is used up ({where}): free space",
    errno.EROFS: "The disk is read-only ({where}): make it writable or name another folder",
    errno.EACCES: "Permission is denied ({where}): give it or name another folder",
}


def usage_of(error: BaseException) -> "Usage":
    """Return the usage paid for before `error`, by a failed call or by a call that was cancelled after it was sent."""
    # Records import pydantic, which takes longer than all the rest of `--help`.
    from retroformer.method.records import Usage

    usage = getattr(error, "usage", None)
    return usage if isinstance(usage, Usage) else Usage()


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")


def describe(error: BaseException) -> str:
    """Return the type and message of an error of foreign code, whose own text may raise another one."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


def run_command(command: Callable[[list[str]], None]) -> None:
    """Run a stage's `main` on the process arguments; an expected error ends as one sentence and its exit status.

    From here on registered secrets are hidden in output, logs and tracebacks.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # A terminal may lack a character of a model's text.
    guard_output()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        command(sys.argv[1:])
        if not sys.stdout.closed:  # An MCP server closes it.
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit("Stopped. Finished work is stored: run the same command again to go on.")
    except RetroformerError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_status)
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed the pipe.
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _WRITE_ERRORS:
            raise
        _drop_output()
        where = error.filename or "while writing"
        sys.exit(f"{_WRITE_ERRORS[error.errno].format(where=where)} and run the same command again.")


def _drop_output() -> None:
    """Redirect standard output to /dev/null, so that flushing its buffer at exit cannot fail a second time."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
