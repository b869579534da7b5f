"""Runs a program in such a way that it ends together with everything that it has started.

`guard_command(command)` is the command line of a guard, which starts the program with its own standard files. When the
program exits, when the guard gets SIGTERM, or when the process that asked for the guard dies in any way, the guard
kills the program and all its descendants, also those in sessions of their own, and ends as the program did. On Linux it
adopts orphaned descendants (PR_SET_CHILD_SUBREAPER); elsewhere it kills the program's process group.

The guard runs this file without site-packages, so it imports only the standard library.
"""

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

_LINUX = sys.platform == "linux"
_KILL_WITH_PARENT, _ADOPT_ORPHANS = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER."""
_POLL_SECONDS = 0.5
"""Time between two looks at the parent where there is no pidfd."""
_CANNOT_START = 127
_ERROR_BYTES, _END_BYTES = 1 << 24, 1 << 16
"""Largest file of a child's standard error, and the end of it that is kept."""


def guard_command(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that runs this one under a guard of the calling process."""
    return (sys.executable, "-I", "-S", str(Path(__file__)), str(os.getpid()), *command)


class ErrorOutput:
    """Standard error of a child: a file of which only the end is kept and read."""

    def __init__(self) -> None:
        import tempfile  # The guard starts faster without it.

        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # It is open as long as the program runs.

    def fileno(self) -> int:
        return self._file.fileno()

    def last_line(self) -> str:
        """Return the last line that is not blank; empty if there is none."""
        lines = self._end().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def trim(self) -> None:
        """Cut the file to its end if it is large. The child writes on from there, as it shares the position."""
        if os.fstat(self.fileno()).st_size > _ERROR_BYTES:
            last = self._end()
            os.ftruncate(self.fileno(), 0)
            os.lseek(self.fileno(), 0, os.SEEK_SET)
            os.write(self.fileno(), last)

    def close(self) -> None:
        self._file.close()

    def _end(self) -> bytes:
        return os.pread(self.fileno(), _END_BYTES, max(0, os.fstat(self.fileno()).st_size - _END_BYTES))


def main(parent: int, command: Sequence[str]) -> NoReturn:
    """Guard the program until it or the parent ends, then kill what is left and end as the program did."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    asked = list[int]()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _LINUX:
        _prctl(_ADOPT_ORPHANS, 1)
    program = os.fork()
    if program == 0:
        _become(command)
    _close_standard_files()
    watch = _pidfd(parent)
    watched = [wake] if watch is None else [wake, watch]
    status: int | None = None
    # A parent that died before it was watched has left this process to another one.
    while status is None and not asked and os.getppid() == parent:
        ready, _, _ = select.select(watched, [], [], _POLL_SECONDS if watch is None else None)
        if watch in ready:
            break
        if wake in ready:
            os.read(wake, 4096)
            status = _reap(program)
    _end_as(_kill_all(program, status))


def _become(command: Sequence[str]) -> NoReturn:
    """Run the program in this process, with the signals of a fresh one, in a process group of its own."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)
    if _LINUX:
        _prctl(_KILL_WITH_PARENT, signal.SIGKILL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    os._exit(_CANNOT_START)


def _close_standard_files() -> None:
    """Leave standard input and output to the program, whose end must be seen by those who use them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def _pidfd(process: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None where there is none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(process)
    except OSError:
        return None


def _reap(program: int) -> int | None:
    """Collect all children that have ended; return the wait status of the program if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = ended[1] if ended[0] == program else status
    return status


def _kill_all(program: int, status: int | None) -> int:
    """Kill the program, unless it has ended with `status`, and all its descendants; return its wait status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, signal.SIGKILL)  # Its group may not exist yet.
        _, status = os.waitpid(program, 0)
    with contextlib.suppress(ChildProcessError):
        # Children of those that are killed become children of this process.
        while True:
            for child in _children() if _LINUX else ():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)
    return status


def _children() -> Iterable[int]:
    own = os.getpid()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            # The name of the program, in brackets, may hold blanks and brackets.
            if int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]) == own:
                yield int(process.name)


def _end_as(status: int) -> NoReturn:
    """End with the exit status or by the signal of a wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
