"""Sandbox that runs judged code without access to the network, other processes or files of the host except libraries.

Needs Linux 5.12 or newer on x86-64 or ARM64, and user namespaces; if something is missing, it refuses and names it.
"""

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from retroformer.environments.programming.jail import wire
from retroformer.environments.programming.jail.linux import is_supported
from retroformer.errors import EnvironmentFailure, ServiceError
from retroformer.method.records import Record

_MEBIBYTE = 1 << 20
Positive = Annotated[int, Field(ge=1)]


class Limits(Record):
    """Limits of one process. Exceeding the first two is a timeout, exceeding the others an error in the code."""

    cpu_seconds: Positive = 10
    """CPU seconds over all threads: for all hidden tests, or for one of an agent's own."""
    wall_seconds: Annotated[float, Field(gt=0)] = 40.0
    """Wall-clock seconds for one test: generous, since a busy machine makes code wait."""
    memory_bytes: Positive = 512 * _MEBIBYTE
    """Address space in bytes; the code has one process."""
    file_bytes: Positive = 16 * _MEBIBYTE
    """Maximum size of the largest file, and of all files together."""
    files: Positive = 256
    """Maximum number of files and folders."""
    threads: Positive = 32
    answer_bytes: Positive = 4 * _MEBIBYTE
    """Maximum size of one returned value, encoded."""


DEFAULT = Limits()
COMPILING = Limits(
    cpu_seconds=60,
    wall_seconds=120.0,
    memory_bytes=4096 * _MEBIBYTE,
    file_bytes=256 * _MEBIBYTE,
    files=4096,
    threads=256,
)
"""Limits of a compiler, which is trusted, and may start the linker."""


_JAIL = Path(__file__).with_name("jail")
_START = """
import importlib.util, socket, sys
spec = importlib.util.spec_from_file_location("jail", sys.argv[1], submodule_search_locations=[sys.argv[2]])
sys.modules["jail"] = importlib.util.module_from_spec(spec)
from jail import fork_server
sys.argv, sys.orig_argv = [""], [""]
fork_server.main(socket.socket(fileno=0))
"""
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/nix/store")
_PACKAGES = ("site-packages", "dist-packages")
_REPORT_BYTES = 1 << 26
_FIRST_START_SECONDS = 60.0
_LEAVE_SECONDS = 120.0

Report = tuple[Any, ...]


class JailOutcome(NamedTuple):
    """Outcome of a jail: its reports in order, and why it was stopped, if it was."""

    reports: list[Report]
    late: bool
    """True if it took too long."""
    exhausted: bool = False
    """True if its processes together exceeded the memory limit."""

    @property
    def complete(self) -> bool:
        return bool(self.reports) and self.reports[-1][0] == "done"

    @property
    def fault(self) -> str:
        """Reason why it is incomplete, as far as the jail could report."""
        word, *rest = self.reports[-1] if self.reports else ("",)
        return str(rest[0]) if word in ("failed", "unconfined") and rest else "it sent no report"


def run(job: dict[str, Any], limits: Limits, seconds: float, tools: tuple[str, ...] = ()) -> JailOutcome:
    """Run a job in a new jail; on return, no process started in it exists any more.

    seconds: wall-clock limit for the whole job. tools: folders of the host that its programs need, shown read-only.

    Raises ServiceError, EnvironmentFailure.
    """
    if sys.platform != "linux" or not is_supported():
        raise ServiceError("Candidate code runs only on Linux on x86-64 or ARM64, where it can be isolated.")
    setting = wire.encode(_setting(limits, tools))
    try:
        outcome, word, value = _attempt(setting, wire.encode(job), seconds)
    except (OSError, EOFError):
        # The fork server was killed, for instance because memory was short: retry once with a new one.
        _fork_server.close()
        try:
            outcome, word, value = _attempt(setting, wire.encode(job), seconds)
        except (OSError, EOFError, wire.Unreadable) as error:
            raise EnvironmentFailure(f"The sandbox broke down before it was done: {error!r}.") from error
    if word == "unavailable":
        raise ServiceError(
            f"Candidate code cannot be isolated here: {value}. It needs Linux 5.12 or newer and user namespaces: allow "
            "them with `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or start the container with "
            "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`."
        )
    return outcome._replace(exhausted=value != 0)


def _attempt(setting: bytes, job: bytes, seconds: float) -> tuple[JailOutcome, str, object]:
    """Run one job; return also the last message of its process. Raises OSError, EOFError."""
    line, job_line = socket.socketpair()
    results, controller_results = socket.socketpair()
    with line, results:
        with os.fdopen(os.memfd_create("job", os.MFD_CLOEXEC), "w+b") as file, job_line, controller_results:
            file.write(job)
            file.flush()
            file.seek(0)
            files = [file.fileno(), controller_results.fileno(), job_line.fileno()]
            socket.send_fds(_fork_server.control(), [setting], files)
        outcome = _collect(results, seconds)
        # Hanging up ends the jail if it still runs.
        line.shutdown(socket.SHUT_WR)
        line.settimeout(_LEAVE_SECONDS)
        word, value = wire.receive(line, _REPORT_BYTES)
    return outcome, word, value


def require() -> None:
    """Build an empty jail, so that a machine without isolation fails before any work. Raises like `run`."""
    run({"kind": "commands", "steps": []}, DEFAULT, _FIRST_START_SECONDS)


def _setting(limits: Limits, tools: tuple[str, ...]) -> dict[str, Any]:
    # A virtual environment has no standard library of its own: use the place where the interpreter was installed.
    standard = {sysconfig.get_path("stdlib"), *(str(Path(sys.base_prefix, name)) for name in ("lib", sys.platlibdir))}
    visible = [*_LIBRARIES, *tools, *sorted(standard)]
    shown: list[str] = []
    for path in sorted(set(visible), key=len):
        if not any(Path(path).is_relative_to(other) for other in shown):
            shown.append(path)
    # Installed packages are hidden: they may contain this project and data with hidden tests.
    roots = {*map(Path, standard), Path("/usr/lib/python3"), Path("/usr/local/lib/python3")}
    return {
        "visible": shown,
        "hidden": sorted(str(root / name) for root in roots for name in _PACKAGES if (root / name).is_dir()),
        "build_bytes": COMPILING.file_bytes if tools else 0,
        "limits": limits.model_dump(),
        "compiling": COMPILING.model_dump(),
    }


def _collect(results: socket.socket, seconds: float) -> JailOutcome:
    end, reports = time.monotonic() + seconds, list[Report]()
    with contextlib.suppress(EOFError, wire.Unreadable):
        while not reports or reports[-1][0] != "done":
            try:
                reports.append(wire.receive(results, _REPORT_BYTES, end=end))
            except TimeoutError:
                return JailOutcome(reports, late=True)
    return JailOutcome(reports, late=False)


class _ForkServer:
    """Process that forks jails, one for each of our processes, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0

    def control(self) -> socket.socket:
        with self._lock:
            if self._control is None or self._owner != os.getpid():
                self._start()
            assert self._control is not None
            return self._control

    def _start(self) -> None:
        if self._control is not None:
            # After a fork: the fork server belongs to the parent.
            self._control.close()
        own_end, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end:
            bare = [sys.executable, "-S", "-s", "-P", "-X", "utf8", "-c", _START]
            self._process = subprocess.Popen(
                [*bare, str(_JAIL / "__init__.py"), str(_JAIL)],
                stdin=server_end.fileno(),
                stdout=subprocess.DEVNULL,
                env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"},
                cwd="/",
                start_new_session=True,
            )
        self._control, self._owner = own_end, os.getpid()

    def close(self) -> None:
        """Stop it; the next job starts another."""
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._process is not None and self._owner == os.getpid():
                self._process.wait()
            self._control = self._process = None


_fork_server = _ForkServer()
atexit.register(_fork_server.close)
