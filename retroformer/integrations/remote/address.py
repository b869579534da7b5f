"""Opens an address: a repository on a model hub, or a folder on any file system that fsspec supports."""

import os
import re

from retroformer.errors import ConfigError, MissingInput
from retroformer.secrets.redaction import keep_secret
from retroformer.secrets.url import SecretUrl

from .transport import HUB, Remote

_SECRET_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE|CONNECTION_STRING)$", re.IGNORECASE)
"""Names of the environment variables with which the libraries of hubs and buckets log in."""


def open_remote(address: str, kind: str | None = None, *, private: bool = False) -> Remote:
    """Return the files at an address. `kind` is what will be pushed there: an adapter or ratings; None: to pull.

    Raises:
        ConfigError: it is not an address.
        MissingInput: the extra `remote`, or the package of this kind of address, is not installed.
        RemoteError: it cannot be reached.
    """
    _hide_keys()
    url = SecretUrl(address)
    if "://" not in address:
        raise ConfigError(
            f"{address!r} is not an address: write hf://OWNER/NAME, s3://BUCKET/FOLDER, file:///FOLDER or another "
            "fsspec address."
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


def _hide_keys() -> None:
    """Hide the keys with which the libraries log in, in everything that this process prints."""
    for name, value in os.environ.items():
        if value and _SECRET_VARIABLE.search(name):
            keep_secret(value)
