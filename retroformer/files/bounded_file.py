"""Reads files that a user names, within limits: no input may hang a command, fill the memory or end in a traceback.

Only regular files are opened, so that nothing waits for the writer of a FIFO. The limit of a compressed file (`.xz`,
`.gz`) applies to its decompressed size and is checked while it is read. Every refusal is one `MissingInput` sentence
with the file, the line if there is one, the limit, and what to do.
"""

import errno
import gzip
import hashlib
import io
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retroformer.errors import MissingInput

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_DECOMPRESSORS: dict[str, Callable[[io.BufferedReader], io.BufferedIOBase]] = {
    ".xz": lzma.LZMAFile,
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
}
_DAMAGE = (lzma.LZMAError, zlib.error, gzip.BadGzipFile, EOFError)
_SYSTEM_FAILURES = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM)
"""System errors that are not the file's fault; they are raised unchanged."""
_BUFFER = 64 * KIB


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file to read its bytes.

    Raises:
        MissingInput: it is not a regular file, or not a valid path.
        FileNotFoundError, PermissionError: as `open` raises them.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer; regular files ignore the flag.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None)
        if number == errno.ENOENT or number in _SYSTEM_FAILURES:
            raise
        reason = os.strerror(number) if number else str(error)
        raise MissingInput(f"{str(path)!r} cannot be opened ({reason}): name a regular file.") from None
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise MissingInput(f"{str(path)!r} is {_kind(mode)}, not a regular file: name a regular file.")
    return os.fdopen(handle, "rb")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


class LimitedStream(io.RawIOBase):
    """Byte stream that raises MissingInput after `most_bytes`."""

    def __init__(self, stream: io.BufferedIOBase, most_bytes: int, refusal: str) -> None:
        self._stream, self._left, self._refusal = stream, most_bytes, refusal

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`. Raises MissingInput beyond the limit."""
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        self._left -= len(content)
        if self._left < 0:
            raise MissingInput(self._refusal)
        return len(content)


@contextmanager
def opened(path: Path, most_bytes: int) -> Iterator[io.BufferedReader]:
    """Open the decompressed bytes of a regular file, which may be plain or end in `.xz` or `.gz`.

    Raises:
        MissingInput: the file is not regular, damaged, or holds more than `most_bytes`.
        FileNotFoundError, PermissionError: as `open` raises them.
    """
    decompressor = _DECOMPRESSORS.get(path.suffix)
    refusal = f"{path} holds more than {size(most_bytes)}, the limit for such a file: name a smaller one."
    with open_regular(path) as file, decompressor(file) if decompressor else file as stream:
        try:
            yield io.BufferedReader(LimitedStream(stream, most_bytes, refusal), _BUFFER)
        except _DAMAGE as error:
            raise MissingInput(f"{path} is damaged ({error}): get a fresh copy.") from error


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """Read a whole decompressed file. Raises as `opened` does."""
    with opened(path, most_bytes) as stream:
        return stream.read()


def read_text(path: Path, most_bytes: int) -> str:
    """Read a whole decompressed UTF-8 file. Raises as `opened` does."""
    content = read_bytes(path, most_bytes)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise MissingInput(f"Line {line} of {path} is not UTF-8: save the file in that encoding.") from None


def text_lines(path: Path, line_bytes: int, most_bytes: int) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of a UTF-8 file with their numbers, which start at 1.

    Raises:
        MissingInput: as `opened` does; or a line is longer than `line_bytes`.
    """
    number = 0
    with opened(path, most_bytes) as stream:
        try:
            while line := stream.readline(line_bytes + 1):
                number += 1
                if len(line) > line_bytes:
                    limit = f"{size(line_bytes)}, the limit for a line"
                    raise MissingInput(f"Line {number} of {path} is longer than {limit}: shorten it.")
                if not line.isspace():
                    yield number, line.decode("utf-8")
        except UnicodeDecodeError:
            raise MissingInput(f"Line {number} of {path} is not UTF-8: save the file in that encoding.") from None
        except _DAMAGE as error:
            raise MissingInput(f"Line {number + 1} of {path} is damaged ({error}): get a fresh copy.") from error


def sha256(path: Path) -> "hashlib._Hash":
    """Return the digest of a regular file of any length, read in pieces. Raises as `open_regular` does."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256")


def size(count: int) -> str:
    """Format a number of bytes with its unit, such as `64 MiB`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} bytes"
