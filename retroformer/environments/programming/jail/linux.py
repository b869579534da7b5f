"""System calls that Python 3.11 does not expose, and the filter of those that judged code must not make.

The filter (seccomp(2), classic BPF) is a deny-list on top of namespaces, an empty capability set and limits. It closes
the remaining gaps: new processes (so that one memory limit covers everything), sockets, tracing, state shared by all
programs of the machine, such as locks and watches on library files, and rarely used kernel interfaces.
"""

import ctypes
import errno
import os
import struct

NEW_NAMESPACES = {
    "mount": 0x00020000,
    "host name": 0x04000000,
    "IPC": 0x08000000,
    "user": 0x10000000,
    "process": 0x20000000,
    "network": 0x40000000,
}
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 0x1, 0x2
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
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "forbidding new privileges")


def drop_bounding_set() -> None:
    """Forbid programs started by this process or its children to hold capabilities."""
    capability = 0
    while libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1


def drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _check(libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "dropping capabilities")


def name_host(name: str) -> None:
    _check(libc.sethostname(name.encode(), len(name)), "naming the host")


_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_DENIED_CALLS = """
    acct 163 89, add_key 248 217, bpf 321 280, chroot 161 51, delete_module 176 106, fanotify_init 300 262,
    finit_module 313 273, flock 73 32, fsconfig 431 431, fsmount 432 432, fsopen 430 430, fspick 433 433,
    init_module 175 105, inotify_add_watch 254 27, inotify_init 253 -, inotify_init1 294 26, io_cancel 210 3,
    io_destroy 207 1, io_getevents 208 4, io_setup 206 0, io_submit 209 2, io_uring_enter 426 426,
    io_uring_register 427 427, io_uring_setup 425 425, kcmp 312 272, kexec_file_load 320 294, kexec_load 246 104,
    keyctl 250 219, memfd_create 319 279, memfd_secret 447 447, migrate_pages 256 238, mknodat 259 33,
    modify_ldt 154 -, mount 165 40, mount_setattr 442 442, move_mount 429 429, move_pages 279 239, mq_open 240 180,
    msgget 68 186, name_to_handle_at 303 264, open_by_handle_at 304 265, open_tree 428 428, perf_event_open 298 241,
    personality 135 92, pidfd_getfd 438 438, pidfd_open 434 434, pidfd_send_signal 424 424, pivot_root 155 41,
    process_madvise 440 440, process_vm_readv 310 270, process_vm_writev 311 271, ptrace 101 117, quotactl 179 60,
    quotactl_fd 443 443, reboot 169 142, request_key 249 218, semget 64 190, setns 308 268, shmget 29 194,
    socket 41 198, swapoff 168 225, swapon 167 224, sync 162 81, syncfs 306 267, syslog 103 116, umount2 166 39,
    unshare 272 97, userfaultfd 323 282
"""
"""Name and number on x86_64 and on aarch64; `-` if the architecture lacks it."""
_DENIED = [
    tuple(None if number == "-" else int(number) for number in call.split()[1:]) for call in _DENIED_CALLS.split(",")
]
_FORK = ((57, None), (58, None))
"""fork and vfork."""
_EXECUTE = ((59, 221), (322, 281))
"""execve and execveat."""
_SEND_MESSAGE = ((46, 211), (307, 269))
"""sendmsg and sendmmsg, which pass open files: the number of those on their way is limited for each user."""
_CLONE, _CLONE3, _PRLIMIT, _FCNTL = (56, 220), 435, (302, 261), (72, 25)
_SHARED_FCNTL = (6, 7, 37, 38, 1024, 1026, 1031)
"""Commands of fcntl that affect all users of a file, including libraries of the host, or use up a limit of the user:
F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ."""
_FIRST_UNKNOWN = 450
"""First system call number newer than this list; from here on calls fail as on an older kernel."""
_CLONE_THREAD, _CLONE_NEW_ANYTHING = 0x00010000, 0x7E020000
_X32 = 0x40000000

_LOAD, _EQUAL, _GREATER_OR_EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


def is_supported() -> bool:
    """Return True if the filter knows this machine's system calls."""
    return os.uname().machine in _ARCHITECTURES


def filter_system_calls(processes: bool, programs: bool, files: bool) -> None:
    """Filter this process and all it starts. It may fork, execute and pass open files to others only if so allowed.

    `no_new_privs` must be set. Raises OSError.
    """
    instructions = _filter(os.uname().machine, processes, programs, files)
    code = ctypes.create_string_buffer(b"".join(instructions))
    program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code))
    _check(libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0), "filtering system calls")


def _filter(machine: str, processes: bool, programs: bool, files: bool) -> list[bytes]:
    column = 0 if machine == "x86_64" else 1
    permitted = {_FORK: processes, _EXECUTE: programs, _SEND_MESSAGE: files}
    calls = [*_DENIED, *(call for group, is_permitted in permitted.items() if not is_permitted for call in group)]
    denied = {numbers[column] for numbers in calls}
    refuse, missing = _refusal(errno.EPERM), _refusal(errno.ENOSYS)
    lines = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, _ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_GREATER_OR_EQUAL, _X32, 0, 1),
        refuse,
        _instruction(_GREATER_OR_EQUAL, _FIRST_UNKNOWN, 0, 1),
        missing,
        # The C library falls back to clone, whose flags a filter can see.
        _instruction(_EQUAL, _CLONE3, 0, 1),
        missing,
    ]
    for number in sorted(number for number in denied if number is not None):
        lines += [_instruction(_EQUAL, number, 0, 1), refuse]
    if not processes:
        # A compiler is trusted, and locks its output files.
        lines += _fcntl(_FCNTL[column], refuse)
    lines += _clone(_CLONE[column], processes, refuse)
    lines += [  # Limits may be changed (that is, lowered) only for the caller.
        _instruction(_EQUAL, _PRLIMIT[column], 0, 3),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_EQUAL, 0, 1, 0),
        refuse,
        _instruction(_RETURN, _ALLOW),
    ]
    return lines


def _clone(number: int, processes: bool, refuse: bytes) -> list[bytes]:
    """Return rules that allow threads, and processes if permitted, but never a new namespace."""
    kind = [] if processes else [_instruction(_ANY_BIT, _CLONE_THREAD, 1, 0), refuse]
    body = [
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _CLONE_NEW_ANYTHING, 0, 1),
        refuse,
        *kind,
        _instruction(_RETURN, _ALLOW),
    ]
    return [_instruction(_EQUAL, number, 0, len(body)), *body]


def _fcntl(number: int, refuse: bytes) -> list[bytes]:
    """Return rules that allow all commands except those that affect others than the caller."""
    body = [_instruction(_LOAD, _SECOND_ARGUMENT)]
    for command in _SHARED_FCNTL:
        body += [_instruction(_EQUAL, command, 0, 1), refuse]
    body += [_instruction(_RETURN, _ALLOW)]
    return [_instruction(_EQUAL, number, 0, len(body)), *body]


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, operand)


def _refusal(number: int) -> bytes:
    return _instruction(_RETURN, 0x00050000 | number)
