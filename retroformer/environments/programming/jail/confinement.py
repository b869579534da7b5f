"""Isolation from the host: a file system, namespaces and limits of its own, and no rights.

The file system has libraries to read, a few devices, and nothing else of the host. One control group bounds the memory
and processes of everything in a jail together. It is created inside the group of the judging process: with cgroup v1
as root, with v2 if the controllers are delegated to that group or to its parent. Otherwise there is none, and the
limits of each process apply.
"""

import contextlib
import errno
import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from . import linux

BUILD, WORK = "/build", "/work"
_STAGE, _OLD = "/tmp", "/old"
_DEVICES = ("null", "zero", "random", "urandom")
LOCKED = linux.MOUNT_ATTR_RDONLY | linux.MOUNT_ATTR_NOSUID


def build_root(visible: Iterable[str], hidden: Iterable[str], build_bytes: int) -> None:
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
            linux.restrict_mount(path, LOCKED)
    for name in _DEVICES:
        _show(f"/dev/{name}")
    Path(WORK).mkdir()
    if not Path("/tmp").exists():
        Path("/tmp").symlink_to(WORK)
    if build_bytes:
        Path(BUILD).mkdir()
        mount_empty(BUILD, build_bytes, 4096)
    linux.detach(_OLD)
    Path(_OLD).rmdir()
    linux.restrict_mount("/", LOCKED, recursive=False)


def mount_empty(folder: str, size: int, files: int) -> None:
    """Mount an empty in-memory file system on `folder`, of `size` bytes and `files` files. Raises OSError."""
    options = f"mode=777,size={size},nr_inodes={files + 1}"
    linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)


def mount_work(size: int, files: int) -> None:
    """Give this process alone an empty WORK, and go there. Raises OSError."""
    linux.unshare("mount")
    mount_empty(WORK, size, files)
    os.chdir(WORK)


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
    linux.restrict_mount(path, LOCKED)


_NOBODY, _INNER_NOBODY = 65534, 1
_DESCRIPTORS, _GUARDS = 64, 4
_PENDING_SIGNALS = 64


JailLimits = dict[str, Any]
"""Limits of one piece of judged code, by their names in the host's `sandbox.Limits`."""
Setting = dict[str, Any]
"""Settings of a jail, as the host's `sandbox.run` sends them to the builder. None of them is secret."""


def leave_host() -> None:
    """Enter new namespaces of every kind. Children, not this process, are in the process namespace. Raises OSError.

    Root becomes two users of the new user namespace: 0, which builds it, and 1, nobody, which runs in it.
    """
    Path("/proc/self/oom_score_adj").write_text("1000")
    # Root may be only root of a user namespace with a single user.
    users = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if os.geteuid() == 0 and any(int(start) <= _NOBODY < int(start) + int(count) for start, _, count in users):
        _map_root()
    else:
        user, group = os.geteuid(), os.getegid()
        linux.unshare("user")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    for name in ("mount", "network", "IPC", "host name", "process"):
        linux.unshare(name)
    linux.name_host("sandbox")


def _map_root() -> None:
    """Map two users, which only a child that stays outside the new namespace can do."""
    parent = os.getpid()
    wait, go = os.pipe()
    mapper = os.fork()
    if mapper == 0:
        os.close(go)
        os.read(wait, 1)
        try:
            for kind in ("uid", "gid"):
                Path(f"/proc/{parent}/{kind}_map").write_text(f"0 0 1\n{_INNER_NOBODY} {_NOBODY} 1")
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    os.close(wait)
    try:
        linux.unshare("user")
    finally:
        os.close(go)
        _, status = os.waitpid(mapper, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, f"mapping users: {os.strerror(code)}")


def drop_rights(limits: JailLimits, processes: bool = False, programs: bool = False, files: bool = False) -> None:
    """Become nobody without any rights, under these limits and the system call filter. Raises OSError.

    processes, programs, files: if true, it may start processes, execute programs, pass open files to others.
    """
    _limit(limits, processes)
    linux.forbid_new_privileges()
    linux.drop_bounding_set()
    try:
        os.setresgid(_INNER_NOBODY, _INNER_NOBODY, _INNER_NOBODY)
        os.setgroups([])
        os.setresuid(_INNER_NOBODY, _INNER_NOBODY, _INNER_NOBODY)
    except OSError:
        # If started by an ordinary user, the namespace has only that user, without rights.
        if os.getresuid() != (0, 0, 0) or os.getresgid() != (0, 0, 0):
            raise
    linux.drop_capabilities()
    linux.filter_system_calls(processes, programs, files)


def _limit(limits: JailLimits, processes: bool) -> None:
    cpu = limits["cpu_seconds"]
    # The soft limit ends the process with its own signal, the hard limit with SIGKILL. The kernel's clock for these
    # limits is coarser than the one read afterwards: two seconds keep the hard limit apart from the soft one.
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 2))
    for kind, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, _DESCRIPTORS * (8 if processes else 1)),
        # If the whole jail is one user, the guarding processes and the tests' process are counted, too.
        (resource.RLIMIT_NPROC, limits["threads"] + _GUARDS),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        # Timers, too, count as pending signals of the user, which other jails may share.
        (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
    ):
        resource.setrlimit(kind, (most, most))


def keep_only(*kept: int) -> None:
    """Close all other files; standard input, output and error go to /dev/null unless they are kept."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for standard in {0, 1, 2} - set(kept):
        os.dup2(nowhere, standard)
    start = 3
    for descriptor in sorted(descriptor for descriptor in kept if descriptor > 2):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


_TABLE, _MOUNTS = Path("/proc/self/cgroup"), Path("/proc/self/mountinfo")
_CONTROLLERS = ("memory", "pids")
_REMOVALS, _PAUSE_SECONDS = 500, 0.01


class ControlGroup:
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
    """Return the folders in which a group can be created, with the resources limited there; v2 alone if it has one."""
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
