"""Writes that survive a power cut: a file or folder that has its name is complete on the disk.

A rename is atomic for other processes, but not for the disk: without fsync a file system may store the new name before
the bytes behind it, and after a power cut the name stands for an empty or half-written file.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""What network file systems answer that cannot sync a folder; they store its entries at once."""


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, so that `path` holds the old or the new text after a power cut."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write in the folder of `path`; at the end it takes the place of `path`.

    An exception inside leaves `path` as it was.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        yield unfinished
        rename(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def rename(unfinished: Path, path: Path) -> None:
    """Give a finished file or folder its name `path` in the same folder, once all of it is on the disk."""
    sync(unfinished)
    unfinished.replace(path)
    sync_entries(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a folder with all that is below it, is on the disk."""
    if path.is_dir():
        for entry in path.iterdir():
            sync(entry)
    sync_entries(path)


def sync_entries(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _NO_FOLDER_SYNC):
            raise
    finally:
        os.close(descriptor)
