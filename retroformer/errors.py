"""What can go wrong, each with one sentence that says what, where and what now.

    RetroformerError
    ├── ConfigError            (ValueError)         the experiment page, or a key=value, is wrong
    ├── MissingInput           (FileNotFoundError)  a file or fact of the stage before is not there
    ├── UnknownTask            (LookupError)        no task of this id in this split
    ├── DamagedFile            (ValueError)         a file that training wrote or reads is cut short or altered
    ├── NotFinite              (ArithmeticError)    a weight, loss or gradient is infinite or not a number
    ├── ProvenanceError        (ValueError)         the served model is not the one that was asked for
    ├── ServiceError           (RuntimeError)       a server could not start, or its port is taken
    ├── StoreError             (OSError)            the store cannot be read or written
    ├── BudgetExhausted        (RuntimeError)       the token or money budget of the run is spent
    └── InfrastructureFailure  (RuntimeError)       becomes an invalid outcome, never a return of 0
        ├── EndpointFailure    (ConnectionError)    a model endpoint refused, hung or answered garbage
        └── EnvironmentFailure (RuntimeError)       an environment died, hung or could not load its task

An infrastructure failure inside a rollout is data: it is stored with its cause, counted and retried.
Everything else stops the stage, which ends with the sentence and exit status 1. A bug still shows its traceback.
"""

import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence


class RetroformerError(Exception):
    """Base of every error that Retroformer raises on purpose."""


class ConfigError(RetroformerError, ValueError):
    """The experiment page, or a key=value on the command line, is wrong."""


class MissingInput(RetroformerError, FileNotFoundError):
    """A file or fact of the stage before is not there; the message names the command that makes it."""


class UnknownTask(RetroformerError, LookupError):
    """No task of this id in this split."""


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


class EndpointFailure(InfrastructureFailure, ConnectionError):
    """A model endpoint refused, hung or answered garbage."""


class EnvironmentFailure(InfrastructureFailure):
    """An environment died, hung or could not load its task."""


_NO_WRITING = {
    errno.ENOSPC: "The disk is full ({where}): free space",
    errno.EDQUOT: "The quota of disk space is used up ({where}): free space",
    errno.EROFS: "The disk is read-only ({where}): make it writable or name another folder",
    errno.EACCES: "Permission is denied ({where}): give it or name another folder",
}


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether a command is to say what it takes, and do nothing."""
    return bool({"-h", "--help"} & set(arguments))


def run_command(command: Callable[[list[str]], None]) -> None:
    """Run a stage's `main` on the process arguments; an expected error ends as one sentence and exit status 1."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        command(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit("Stopped. Finished work is stored: run the same command again to go on.")
    except RetroformerError as error:
        sys.exit(str(error))
    except BrokenPipeError:
        # Whoever read the output has gone, as `head` does: there is nobody to tell.
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.errno not in _NO_WRITING:
            raise
        _drop_output()
        where = error.filename or "while writing"
        sys.exit(f"{_NO_WRITING[error.errno].format(where=where)} and run the same command again.")


def _drop_output() -> None:
    """What is still buffered for a reader that cannot take it must not fail once more at the interpreter's exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
