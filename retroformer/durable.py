"""Writes that survive a power cut: a file or folder that has its name is complete on the disk.

A rename is atomic for other processes, but not for the disk: without fsync a file system may store the new name before
the bytes behind it, and after a power cut the name stands for an empty or half-written file.
"""

import errno
import glob
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""What network file systems answer that cannot sync a folder; they store its entries at once."""
ABANDONED_SECONDS = 3600.0
"""A writer that has added nothing to its file for so long was killed: a living one never pauses a tenth of that."""


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, so that `path` holds the old or the new text after a power cut."""
    with _replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write in the folder of `path`; at the end it takes the place of `path`.

    An exception inside leaves `path` as it was. Of several writers of one path the last one to end counts.
    """
    # Only here, where files are large: texts are small, and a manifest may list what else is in its folder.
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*-*.unfinished"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                leftover.unlink()
    with _replacing(path) as unfinished:
        yield unfinished


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    # Every writer has a name of its own, or one would rename or remove the file of another.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.unfinished")
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
