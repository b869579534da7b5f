"""Writes that survive a power cut: a file or folder with its final name is complete on the disk.

A rename is atomic for other processes, but not on the disk: without fsync a file system may store the new name before
the bytes, and after a power cut the file is empty or half-written.
"""

import errno
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP)
"""Errors of network file systems that cannot sync a folder; they store its entries immediately."""
ABANDONED_SECONDS = 3600.0
"""Age after which an unfinished file counts as abandoned: a running writer never pauses for a tenth of that."""


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` as UTF-8, so that after a power cut `path` holds the old or the new text."""
    with _replace_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write in the folder of `path`; at the end it replaces `path`.

    An exception inside leaves `path` as it was. If several writers replace one path, the last to finish wins.
    """
    # Leftovers are removed only here, where files are large: texts are small, and a manifest may list its folder.
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*-*.unfinished"):
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                leftover.unlink()
    with _replace_file(path) as unfinished:
        yield unfinished


@contextmanager
def _replace_file(path: Path) -> Iterator[Path]:
    # Every writer uses a unique name; otherwise one could rename or remove the file of another.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.unfinished")
    try:
        yield unfinished
        rename(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def rename(unfinished: Path, path: Path) -> None:
    """Rename a finished file or folder to `path` in the same folder, once all of it is on the disk."""
    sync(unfinished)
    unfinished.replace(path)
    sync_entries(path.parent)


def publish(unfinished: Path, folder: Path) -> None:
    """Put a finished folder in the place of `folder`, or of a link of this name, once all of it is on the disk.

    An error leaves the old folder in its place. A kill between the two renames leaves it where `put_back` finds it.
    """
    sync(unfinished)
    put_back(folder)
    if os.path.lexists(folder):
        folder.rename(_replaced(folder))
    try:
        unfinished.rename(folder)
    except BaseException:
        put_back(folder)
        raise
    sync_entries(folder.parent)
    delete(_replaced(folder))


def put_back(folder: Path) -> None:
    """Give a folder that a killed `publish` moved aside its name again, or delete it if there is a new one."""
    replaced = _replaced(folder)
    if os.path.lexists(replaced) and not os.path.lexists(folder):
        replaced.rename(folder)
    delete(replaced)


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


def delete(path: Path) -> None:
    """Delete a folder, or a link but not what it leads to; nothing happens if there is none."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or a folder with its whole content, is on the disk."""
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
