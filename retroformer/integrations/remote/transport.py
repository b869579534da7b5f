"""The protocol of the places where files travel to and from, and one sentence for the errors of their libraries."""

import errno
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from retroformer.errors import MissingInput, RetroformerError

HUB = "hf://"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class RemoteError(RetroformerError, ConnectionError):
    """A hub or bucket refused, could not be reached, or lost a file."""


class Remote(Protocol):
    """Files at an address."""

    address: str
    """The address without credentials."""

    def write(self, files: Mapping[str, Path], title: str) -> None:
        """Write the files so that the last of them is visible only with all others. Raises RemoteError."""
        ...

    def read(self, name: str, path: Path, most_bytes: int) -> None:
        """Copy a file to `path`, at most one byte more than `most_bytes`. Raises MissingInput, RemoteError."""
        ...


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Translate a library's errors in the block to one sentence.

    The libraries of buckets share no base class of errors, so all of them are caught.
    """
    try:
        yield
    except RetroformerError:
        raise
    except ImportError as error:
        raise MissingInput(f"{address} needs a package that is not installed: {_one_line(error)}.") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise  # The fault is this machine's, and the command says which disk.
        raise RemoteError(
            f"{address} cannot be used ({type(error).__name__}: {_one_line(error)}): check the address, the network "
            "and your key (HF_TOKEN for hf://, AWS_ACCESS_KEY_ID and others for buckets) and run again."
        ) from None


def quiet() -> bool:
    """Return True if nobody watches progress bars."""
    return not sys.stderr.isatty()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:400]
