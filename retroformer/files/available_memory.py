"""The memory that a process may still take: what the machine has free, within the limits of its control groups."""

from collections.abc import Iterator
from pathlib import Path


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the available memory in bytes; None on systems without /proc, where it is not known.

    Caches that the kernel would drop count as available. `root` is the folder that holds proc and sys.
    """
    free = _available_on_machine(root / "proc/meminfo")
    return None if free is None else max(0, min([free, *_left_in_groups(root)]))


def _available_on_machine(meminfo: Path) -> int | None:
    if not meminfo.is_file():
        return None
    entries = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
    return int(entries["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in entries else None


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield what is left below each limit of memory on the control groups (version 2) of this process."""
    groups, folder = root / "proc/self/cgroup", root / "sys/fs/cgroup"
    for line in groups.read_text(encoding="utf-8").splitlines() if groups.is_file() else ():
        if line.startswith("0::"):
            # In a container the files of its own group may lie at the top.
            own = folder / line.removeprefix("0::").strip("/")
            for group in dict.fromkeys((own, *own.parents)):
                if group.is_relative_to(folder) and (left := _left(group)) is not None:
                    yield left


def _left(group: Path) -> int | None:
    """Return limit minus use plus cache of a group; None if it has no limit."""
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # No limit is the word `max`.
        return None
    return limit - used + int(statistics.get("inactive_file", 0))
