"""Files at an address: a repository of a model hub, or a folder of any file system that fsspec knows."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import huggingface_hub
from fsspec.core import url_to_fs
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import disable_progress_bars

from retroformer.endpoint.secrets.redaction import keep_secret
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError, DamagedFile, MissingInput, RetroformerError

MANIFEST = "retroformer.json"
_HUB = re.compile(
    r"hf://(?:(?P<kind>models|datasets)/)?(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?/?", re.ASCII
)
_REPOSITORIES = {"adapter": "model", "ratings": "dataset"}
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss"}
"""Protocols without folders. Their `makedirs` would create a bucket, which a typing mistake must not do."""
_SECRET_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE|CONNECTION_STRING)$", re.IGNORECASE)
"""Names of the environment variables with which the libraries of hubs and buckets log in."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class RemoteError(RetroformerError, ConnectionError):
    """A hub or bucket refused, could not be reached, or lost a file."""


class Place:
    """An address. The environment of the libraries decides how they log in, and `HF_ENDPOINT` names another hub."""

    def __init__(self, address: str, kind: str = "", *, private: bool = False) -> None:
        """Check an address. `kind` is what will be pushed there: an adapter or ratings.

        Raises ConfigError if it is no address for this kind; MissingInput if the package of such addresses is missing.
        """
        for name, value in os.environ.items():
            if value and _SECRET_VARIABLE.search(name):
                keep_secret(value)
        url, self._hub = SecretUrl(address), _HUB.fullmatch(address)
        self.address = str(url)
        """The address without credentials."""
        self._kind, self._private = kind, private
        if "://" not in address:
            raise ConfigError(
                f"{address!r} is not an address: write hf://OWNER/NAME, s3://BUCKET/FOLDER, file:///FOLDER or another "
                "fsspec address."
            )
        if self._hub is not None:
            self._use_hub(self._hub)
        elif address.startswith("hf://"):
            raise ConfigError(f"{url} is not a hub address: write hf://OWNER/NAME or hf://datasets/OWNER/NAME.")
        elif private:
            raise ConfigError(f"--private is for hf:// addresses: who may read {url} is decided by its own settings.")
        with _translate_errors(self.address):
            self._files, self._folder = url_to_fs(url.secret_url())

    @property
    def name(self) -> str:
        """Last part of the address: the name of a repository without its revision, or of a folder."""
        return (self.address if self._hub is None else self._hub["repo"]).rstrip("/").rpartition("/")[2]

    def _use_hub(self, hub: re.Match[str]) -> None:
        fits = hub["revision"] is None and hub["kind"] in (None, f"{_REPOSITORIES.get(self._kind)}s")
        if self._kind and not fits:
            raise ConfigError(f"{self.address} cannot hold what is pushed ({self._kind}): write hf://{hub['repo']}.")
        if huggingface_hub.constants.is_offline_mode():
            raise ConfigError("HF_HUB_OFFLINE is set, which forbids all calls of the hub: unset it for this command.")
        if token := huggingface_hub.get_token():
            keep_secret(token)
        if not sys.stderr.isatty():
            disable_progress_bars()

    def upload(self, folder: Path, title: str) -> None:
        """Copy the files of a folder so that its manifest is visible only with all others. Raises RemoteError."""
        with _translate_errors(self.address):
            if self._hub is None:
                self._put(folder)
            else:
                self._commit(folder, self._hub["repo"], title)

    def _put(self, folder: Path) -> None:
        """The manifest is removed first and written last, so that half a push is noticed."""
        protocols = self._files.protocol
        if not _OBJECT_STORES & {*((protocols,) if isinstance(protocols, str) else protocols)}:
            self._files.makedirs(self._folder, exist_ok=True)
        if self._files.exists(self._path(MANIFEST)):
            self._files.rm_file(self._path(MANIFEST))
        for path in sorted(folder.iterdir(), key=lambda path: path.name == MANIFEST):
            self._files.put_file(str(path), self._path(path.name))

    def _commit(self, folder: Path, repo: str, title: str) -> None:
        """Write all files in one commit, in a repository that is created if there is none."""
        api, kind = huggingface_hub.HfApi(library_name="retroformer"), _REPOSITORIES[self._kind]
        api.create_repo(repo, repo_type=kind, private=self._private or None, exist_ok=True)
        if self._private and not api.repo_info(repo, repo_type=kind).private:
            raise RemoteError(f"{self.address} is a public repository: make it private there, or name another one.")
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=title, repo_type=kind)

    def pin(self) -> None:
        """On a hub, read the newest commit from now on, also if somebody pushes meanwhile.

        Raises MissingInput if there is no such repository; RemoteError if the hub cannot be reached.
        """
        if self._hub is None:
            return
        for kind in [self._hub["kind"]] if self._hub["kind"] else ["models", "datasets"]:
            with _translate_errors(self.address), suppress(RepositoryNotFoundError):
                repo, revision = self._hub["repo"], self._hub["revision"]
                info = huggingface_hub.HfApi().repo_info(repo, repo_type=kind.removesuffix("s"), revision=revision)
                self._folder = f"{'datasets/' if kind == 'datasets' else ''}{repo}@{info.sha}"
                return
        raise MissingInput(
            f"No repository {self.address} that you may read: check the name, and set HF_TOKEN if it is private."
        )

    def download(self, name: str, path: Path, most_bytes: int) -> None:
        """Copy a file of at most `most_bytes` to `path`. Raises MissingInput, DamagedFile, RemoteError."""
        with _translate_errors(self.address):
            try:
                size = self._files.info(self._path(name))["size"] or 0
                if size > most_bytes:
                    raise DamagedFile(
                        f"{name} at {self.address} has {size} bytes, more than the {most_bytes} allowed: pull only "
                        "from addresses that you trust."
                    )
                self._files.get_file(self._path(name), str(path))
            except FileNotFoundError:
                raise MissingInput(
                    f"No {name} at {self.address}: check the address, or push to it first with `retroformer push`."
                ) from None

    def _path(self, name: str) -> str:
        return f"{self._folder.rstrip('/')}/{name}"


@contextmanager
def _translate_errors(address: str) -> Iterator[None]:
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
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            raise  # The fault is this machine's, and the command says which disk.
        raise RemoteError(
            f"{address} cannot be used ({type(error).__name__}: {_one_line(error)}): check the address, the network "
            "and your key (HF_TOKEN for hf://, AWS_ACCESS_KEY_ID and others for buckets) and run again."
        ) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:400]
