"""Files in a repository of a model hub: a model for an adapter, a data set for ratings.

The library's own environment decides how: HF_TOKEN or a stored login, and HF_ENDPOINT for another hub.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import huggingface_hub
from huggingface_hub import errors
from huggingface_hub.utils import disable_progress_bars

from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.secrets.redaction import keep_secret

from .transport import HUB, RemoteError, quiet, reaching

_ADDRESS = re.compile(
    rf"{HUB}(?:(?P<kind>models|datasets)/)?(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w./-]+))?/?", re.ASCII
)
_REPOSITORIES = {"adapter": "model", "ratings": "dataset"}


class Hub:
    """A repository. A push is one commit; a pull reads one commit, also if somebody pushes meanwhile."""

    def __init__(self, address: str, kind: str | None, *, private: bool) -> None:
        """Raises ConfigError, RemoteError."""
        parts = _ADDRESS.fullmatch(address)
        if parts is None:
            raise ConfigError(f"{address} is not a hub address: write hf://OWNER/NAME or hf://datasets/OWNER/NAME.")
        self.address, self._repo, self._revision = address, parts["repo"], parts["revision"]
        named = parts["kind"] and parts["kind"].removesuffix("s")
        self._kinds = [named] if named else ["model", "dataset"]
        if kind is not None:
            if named not in (None, _REPOSITORIES[kind]) or self._revision:
                raise ConfigError(f"{address} cannot hold what is pushed ({kind}): write hf://{self._repo}.")
            self._kinds = [_REPOSITORIES[kind]]
        self._private = private
        self._commit: tuple[str, str] | None = None
        if huggingface_hub.constants.is_offline_mode():
            raise ConfigError("HF_HUB_OFFLINE is set, which forbids all calls of the hub: unset it for this command.")
        if token := huggingface_hub.get_token():
            keep_secret(token)
        if quiet():
            disable_progress_bars()
        self._api = huggingface_hub.HfApi(library_name="retroformer")

    def write(self, files: Mapping[str, Path], title: str) -> None:
        """Write the files in one commit, in a repository that is created if there is none. Raises RemoteError."""
        (kind,) = self._kinds
        with reaching(self.address):
            self._api.create_repo(self._repo, repo_type=kind, private=self._private or None, exist_ok=True)
            if self._private and not self._api.repo_info(self._repo, repo_type=kind).private:
                raise RemoteError(f"{self.address} is a public repository: make it private there, or name another one.")
            operations = [
                huggingface_hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(path))
                for name, path in files.items()
            ]
            self._api.create_commit(self._repo, operations, commit_message=title, repo_type=kind)

    def read(self, name: str, path: Path, most_bytes: int) -> None:
        """Copy a file to `path`, always of the same commit. Raises MissingInput, RemoteError, DamagedFile."""
        kind, commit = self._pinned()
        with reaching(self.address), tempfile.TemporaryDirectory(dir=path.parent, prefix=".hub-") as scratch:
            try:
                file = huggingface_hub.hf_hub_url(
                    self._repo, name, repo_type=kind, revision=commit, endpoint=self._api.endpoint
                )
                size = self._api.get_hf_file_metadata(url=file).size or 0
                if size > most_bytes:
                    raise DamagedFile(
                        f"{name} at {self.address} has {size} bytes, more than the {most_bytes} allowed: pull only "
                        "from addresses that you trust."
                    )
                copied = huggingface_hub.hf_hub_download(
                    self._repo, name, repo_type=kind, revision=commit, local_dir=scratch
                )
            except errors.EntryNotFoundError:
                raise MissingInput(
                    f"No {name} at {self.address}: check the address, or push to it first with `retroformer push`."
                ) from None
            Path(copied).replace(path)

    def _pinned(self) -> tuple[str, str]:
        """Return the type of the repository and the commit that this object reads. Raises MissingInput, RemoteError."""
        with reaching(self.address):
            for kind in self._kinds if self._commit is None else ():
                try:
                    info = self._api.repo_info(self._repo, repo_type=kind, revision=self._revision)
                except errors.RepositoryNotFoundError:
                    continue
                self._commit = kind, str(info.sha)
                break
        if self._commit is None:
            raise MissingInput(
                f"No repository {self.address} that you may read: check the name, and set HF_TOKEN if it is private."
            )
        return self._commit
