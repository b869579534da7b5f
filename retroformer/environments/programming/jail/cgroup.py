"""One control group for everything in a jail, which bounds the memory and processes of all of it together.

It is created inside the group of the judging process: with cgroup v1 as root, with v2 if the controllers are delegated
to that group or to its parent. Otherwise there is none, and the limits of each process apply.
"""

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Self

_TABLE, _MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mountinfo")
_CONTROLLERS = ("memory", "pids")
_REMOVALS, _PAUSE_SECONDS = 500, 0.01


class Group:
    """Groups of one jail: one with cgroup v2, one per controller with v1, none if none can be created."""

    def __init__(self, memory_bytes: int, processes: int) -> None:
        self._folders: list[Path] = []
        self._entries: list[int] = []
        name = f"retroformer-{os.getpid()}"
        for parent, controllers in _parents():
            with contextlib.suppress(OSError):
                self._make(parent / name, controllers, memory_bytes, processes)

    def _make(self, folder: Path, controllers: tuple[str, ...], memory_bytes: int, processes: int) -> None:
        folder.mkdir()
        self._folders.append(folder)
        if "pids" in controllers:
            (folder / "pids.max").write_text(str(processes))
        if "memory" in controllers:
            second = folder / "memory.max"
            first = second if second.exists() else folder / "memory.limit_in_bytes"
            first.write_text(str(memory_bytes))
            with contextlib.suppress(OSError):
                # Only if the kernel counts swap.
                (folder / "memory.swap.max").write_text("0")
        self._entries.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def enter(self) -> None:
        """Move this process, and all its future children, into the group. Raises OSError."""
        for entry in self._entries:
            os.write(entry, b"0")

    def processes_killed(self) -> int:
        """Return how many processes the kernel killed because the group used too much memory."""
        return sum(_kills(folder) for folder in self._folders)

    def remove(self) -> None:
        """Remove the group; nothing may be running in it any more."""
        for entry in self._entries:
            os.close(entry)
        for folder in self._folders:
            _remove(folder)
        self._entries, self._folders = [], []


def _remove(folder: Path) -> None:
    for _ in range(_REMOVALS):
        try:
            folder.rmdir()
        except OSError as error:
            # A killed process leaves its group a moment later.
            if error.errno != errno.EBUSY:
                return
        else:
            return
        time.sleep(_PAUSE_SECONDS)


def _kills(folder: Path) -> int:
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def _parents() -> list[tuple[Path, tuple[str, ...]]]:
    """Return the folders in which a group can be created, with the resources limited there; v2 first."""
    try:
        table = [line.split(":", 2) for line in _TABLE.read_text().splitlines()]
        mounts = _mounts()
    except (OSError, ValueError):
        return []
    folders: list[tuple[Path, tuple[str, ...]]] = []
    for _, controllers, path in table:
        if not controllers and (second := _second_version(mounts.get(""), path)) is not None:
            return [(second, _CONTROLLERS)]
        for controller in sorted(set(controllers.split(",")) & set(_CONTROLLERS)):
            folder = _inside(mounts.get(controller), path)
            folders += [(folder, (controller,))] if folder is not None else []
    return folders


def _second_version(mount: tuple[str, Path] | None, path: str) -> Path | None:
    """Return the group of this process, or its parent if that may have further child groups."""
    own = _inside(mount, path)
    candidates = [own, own.parent] if own is not None and mount is not None and own != mount[1] else [own]
    for folder in candidates:
        with contextlib.suppress(OSError):
            if folder is not None and set(_CONTROLLERS) <= set((folder / "cgroup.subtree_control").read_text().split()):
                return folder
    return None


def _inside(mount: tuple[str, Path] | None, path: str) -> Path | None:
    """Return the folder of the group of this path; the mount may show only a part of all groups."""
    if mount is None or not Path(path).is_relative_to(mount[0]):
        return None
    folder = mount[1] / Path(path).relative_to(mount[0])
    return folder if folder.is_dir() else None


def _mounts() -> dict[str, tuple[str, Path]]:
    """Return, for each controller of v1 and for v2 under "", the mounted group and its folder."""
    mounts: dict[str, tuple[str, Path]] = {}
    for line in _MOUNTS.read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, folder = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            mounts[""] = root, Path(folder)
        elif kind == "cgroup":
            mounts |= dict.fromkeys(options.split(","), (root, Path(folder)))
    return mounts
