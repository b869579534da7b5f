"""File system of the jail: libraries to read, a few devices, and nothing else of the host."""

import os
from collections.abc import Iterable
from pathlib import Path

from . import linux

BUILD, WORK = "/build", "/work"
_STAGE, _OLD = "/tmp", "/old"
_DEVICES = ("null", "zero", "random", "urandom")
_LOCKED = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID


def build(visible: Iterable[str], hidden: Iterable[str], build_bytes: int) -> None:
    """Change the root of this process's mount namespace to a fresh, read-only one. Raises OSError.

    visible: paths of the host, shown read-only at the same place; missing ones are skipped.
    hidden: folders inside them, shown empty.
    build_bytes: the size of BUILD, which stays writable for processes with the right; 0 for none.
    """
    linux.mount("", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", _STAGE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=1m,nr_inodes=4096")
    old = Path(_STAGE + _OLD)
    old.mkdir()
    linux.pivot_root(_STAGE, str(old))
    os.chdir("/")
    for path in visible:
        _show(path)
    for path in hidden:
        if Path(path).is_dir():
            linux.mount("tmpfs", path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=4k,nr_inodes=1")
            linux.restrict_mount(path, _LOCKED)
    for name in _DEVICES:
        _show(f"/dev/{name}")
    Path(WORK).mkdir()
    if not Path("/tmp").exists():
        Path("/tmp").symlink_to(WORK)
    if build_bytes:
        Path(BUILD).mkdir()
        fresh(BUILD, build_bytes, 4096)
    linux.detach(_OLD)
    Path(_OLD).rmdir()
    linux.restrict_mount("/", _LOCKED, recursive=False)


def fresh(folder: str, size: int, files: int) -> None:
    """Mount an empty in-memory file system on `folder`, of `size` bytes and `files` files. Raises OSError."""
    options = f"mode=777,size={size},nr_inodes={files + 1}"
    linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)


def fresh_work(size: int, files: int) -> None:
    """Give this process alone an empty WORK, and make BUILD read-only for it. Raises OSError."""
    linux.unshare("mount")
    fresh(WORK, size, files)
    os.chdir(WORK)


def lock(folder: str) -> None:
    """Make a folder read-only for the whole mount namespace. Raises OSError."""
    linux.restrict_mount(folder, _LOCKED)


def _show(path: str) -> None:
    source = Path(_OLD + path)
    if source.is_symlink():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).symlink_to(source.readlink())
        return
    if not source.exists():
        return
    if source.is_dir():
        Path(path).mkdir(parents=True, exist_ok=True)
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    linux.mount(str(source), path, None, linux.MS_BIND | linux.MS_REC)
    linux.restrict_mount(path, _LOCKED)
