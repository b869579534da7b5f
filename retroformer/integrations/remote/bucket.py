"""Files in a folder of any file system that fsspec knows: a bucket, a server, a mounted disk."""

from collections.abc import Mapping
from pathlib import Path

import fsspec.core

from retroformer.errors import MissingInput
from retroformer.secrets.url import SecretUrl

from .transport import reaching

_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss"}
"""Protocols without folders. Their `makedirs` would create a bucket, which a typing mistake must not do."""
_CHUNK_BYTES = 1 << 20


class Bucket:
    """A folder of a file system. The manifest is removed first and written last, so that half a push is noticed."""

    def __init__(self, url: SecretUrl) -> None:
        """Raises RemoteError, MissingInput."""
        self.address = str(url)
        with reaching(self.address):
            self._files, self._folder = fsspec.core.url_to_fs(url.secret_url())

    def write(self, files: Mapping[str, Path], title: str) -> None:
        """Write the files in their order, the last one after all others are complete. Raises RemoteError."""
        *_, last = files
        with reaching(self.address):
            if not _OBJECT_STORES & {*_names(self._files.protocol)}:
                self._files.makedirs(self._folder, exist_ok=True)
            if self._files.exists(self._path(last)):
                self._files.rm_file(self._path(last))
            for name, path in files.items():
                self._files.put_file(str(path), self._path(name))

    def read(self, name: str, path: Path, most_bytes: int) -> None:
        """Copy a file to `path`, at most one byte more than `most_bytes`. Raises MissingInput, RemoteError."""
        left = most_bytes + 1
        with reaching(self.address):
            try:
                with self._files.open(self._path(name), "rb") as source, path.open("wb") as copy:
                    while left and (chunk := source.read(min(_CHUNK_BYTES, left))):
                        copy.write(chunk)
                        left -= len(chunk)
            except FileNotFoundError:
                raise MissingInput(
                    f"No {name} at {self.address}: check the address, or push to it first with `retroformer push`."
                ) from None

    def _path(self, name: str) -> str:
        return f"{self._folder.rstrip('/')}/{name}"


def _names(protocol: str | tuple[str, ...]) -> tuple[str, ...]:
    return (protocol,) if isinstance(protocol, str) else protocol
