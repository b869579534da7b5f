"""The memory that a process may still take: what the machine has free, within the limits of its control groups."""

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 2**62
"""Control groups of version 1 write about 2**63 where there is no limit."""


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
    """Yield what is left below each limit of memory on the groups of this process."""
    groups = root / "proc/self/cgroup"
    lines = groups.read_text(encoding="utf-8").splitlines() if groups.is_file() else []
    for number, controllers, path in (line.split(":", 2) for line in lines):
        if number == "0":
            folder, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            folder = root / "sys/fs/cgroup/memory"
        else:
            continue
        # In a container the files of its own group may lie at the top.
        own = folder / path.strip("/")
        for group in dict.fromkeys((own, *own.parents)):
            if group.is_relative_to(folder) and (left := _left(group, *names)) is not None:
                yield left


def _left(group: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    """Return limit minus use plus cache of a group; None if it has no limit."""
    try:
        limit = (group / limit_name).read_text().strip()
        used = int((group / used_name).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max" or int(limit) > _UNLIMITED:
        return None
    return int(limit) - used + int(statistics.get(cache_name, 0))
