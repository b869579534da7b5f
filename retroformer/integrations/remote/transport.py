"""Where files travel to and from: a repository of a model hub, or a folder of any file system that fsspec knows."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from retroformer.errors import ConfigError, MissingInput, RetroformerError
from retroformer.secrets.redaction import keep_secret
from retroformer.secrets.url import SecretUrl

HUB = "hf://"
_SECRET_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE|CONNECTION_STRING)$", re.IGNORECASE)


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


def open_remote(address: str, kind: str | None = None, *, private: bool = False) -> Remote:
    """Return the files at an address. `kind` is what will be pushed there: an adapter or ratings; None: to pull.

    Raises:
        ConfigError: it is no address.
        MissingInput: the extra `remote`, or the package of this kind of address, is not installed.
        RemoteError: it cannot be reached.
    """
    _hide_keys()
    url = SecretUrl(address)
    if "://" not in address:
        raise ConfigError(
            f"{address!r} is no address: write hf://OWNER/NAME, s3://BUCKET/FOLDER, file:///FOLDER or another address "
            "of fsspec."
        )
    try:
        if address.startswith(HUB):
            from .hub import Hub

            return Hub(address, kind, private=private)
        from .bucket import Bucket
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fsspec", "huggingface_hub"):
            raise
        raise MissingInput(
            f"push and pull need {error.name}: install it with `pip install 'retroformer[remote]'`."
        ) from None
    if private:
        raise ConfigError(f"--private is for hf:// addresses: who may read {url} is decided by its own settings.")
    return Bucket(url)


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
        raise RemoteError(
            f"{address} cannot be used ({type(error).__name__}: {_one_line(error)}): check the address, the network "
            "and your key (HF_TOKEN for hf://, AWS_ACCESS_KEY_ID and others for buckets) and run again."
        ) from None


def quiet() -> bool:
    """Return True if nobody watches progress bars."""
    return not sys.stderr.isatty()


def _hide_keys() -> None:
    """Hide the keys with which the libraries log in, in everything that this process prints."""
    for name, value in os.environ.items():
        if value and _SECRET_VARIABLE.search(name):
            keep_secret(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:400]
