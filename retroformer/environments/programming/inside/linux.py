"""System calls that Python 3.11 does not expose."""

import ctypes
import os

NEW_NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "host name": 0x04000000,
    "IPC": 0x08000000,
    "user": 0x10000000,
    "process": 0x20000000,
    "network": 0x40000000,
}
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
_AT_FDCWD, _AT_RECURSIVE, _MNT_DETACH = -100, 0x8000, 2
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_CAPABILITY_VERSION_3 = 0x20080522

libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(*names: str) -> None:
    """Leave these namespaces for new ones (unshare(2))."""
    flags = sum(NEW_NAMESPACES[name] for name in names)
    _check(libc.unshare(flags), f"new {', '.join(names)} namespace{'s' if len(names) > 1 else ''}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Attach a file system (mount(2))."""
    kind_bytes = kind.encode() if kind else None
    arguments = (source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), options.encode())
    _check(libc.mount(*arguments), f"mounting on {target}")


def restrict_mount(target: str, attributes: int, recursive: bool = True) -> None:
    """Add restrictions to a mount and keep those it has (mount_setattr(2), Linux 5.12)."""
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    path = target.encode()
    result = libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, flags, ctypes.byref(wanted), ctypes.sizeof(wanted))
    _check(result, f"restricting the mount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root and put the former root at `old` (pivot_root(2))."""
    _check(libc.syscall(_SYS_PIVOT_ROOT[os.uname().machine], new.encode(), old.encode()), "changing the root")


def detach(target: str) -> None:
    """Take a mount away (umount2(2), lazily)."""
    _check(libc.umount2(target.encode(), _MNT_DETACH), f"unmounting {target}")


def forbid_inspection() -> None:
    """Forbid other processes of the same user to trace this process or read its memory."""
    _check(libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "forbidding inspection")


def forbid_new_privileges() -> None:
    """Forbid programs started by this process to gain rights."""
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "forbidding new privileges")


def drop_bounding_set() -> None:
    """Forbid programs started by this process or its children to hold capabilities."""
    capability = 0
    while libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1


def drop_capabilities() -> None:
    """Give up every capability."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "dropping capabilities")


def name_host(name: str) -> None:
    """Set the host name in this namespace."""
    _check(libc.sethostname(name.encode(), len(name)), "naming the host")
