"""Process that forks jails: it has imported common modules, and learns nothing about any job."""

import contextlib
import importlib
import os
import random
import select
import signal
import socket
from typing import NoReturn

from . import confinement, controller, tester, wire
from .confinement import ControlGroup, Setting, leave_host

_COMMON = ("bisect", "collections", "copy", "functools", "heapq", "itertools", "math", "re", "string", "typing")
"""Modules that judged code often imports."""
_ORDER_BYTES = 1 << 16
_OWN_BYTES, _OWN_PROCESSES = 256 << 20, 16
"""Bytes and processes that the guards of a jail need: their private memory, and their own process count."""


def main(control: socket.socket) -> None:
    """Build a jail for every message of a setting with three files: job, results and lifeline. Ends with `control`."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    for name in _COMMON:
        importlib.import_module(name)
    while True:
        message, files, _, _ = socket.recv_fds(control, _ORDER_BYTES, 3)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            _run_job(wire.decode(message), *files)
        for descriptor in files:
            os.close(descriptor)


def _run_job(setting: Setting, job: int, results: int, lifeline: int) -> NoReturn:
    """Run one job; send ("unavailable", sentence) or ("gone", processes killed for memory) on the lifeline.

    It stays on the host, so it can remove the jail's control group even if the judging process dies.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A signal to its process group must not reach the fork server or another jail.
    os.setsid()
    with socket.socket(fileno=lifeline) as line, ControlGroup(*_bounds(setting)) as group:
        builder = os.fork()
        if builder == 0:
            _build_jail(setting, job, results, line, group)
        os.close(job)
        os.close(results)
        _, status = os.waitpid(builder, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            wire.send(line, ("gone", group.processes_killed()))
    os._exit(0)


def _bounds(setting: Setting) -> tuple[int, int]:
    """Return the limits of bytes of memory and of processes and threads for the whole jail."""
    limits, compiling = setting["limits"], setting["compiling"]
    memory = limits["memory_bytes"] + limits["file_bytes"] + tester.MEMORY_BYTES
    threads = 2 * limits["threads"]
    if setting["build_bytes"]:
        memory = max(memory, compiling["memory_bytes"] + compiling["file_bytes"]) + setting["build_bytes"]
        threads = max(threads, compiling["threads"])
    return memory + _OWN_BYTES, threads + _OWN_PROCESSES


def _build_jail(setting: Setting, job: int, results: int, line: socket.socket, group: ControlGroup) -> NoReturn:
    """Build the jail, wait until all of it has ended, and kill it if the host hangs up."""
    try:
        leave_host()
        confinement.build_root(setting["visible"], setting["hidden"], setting["build_bytes"])
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        wire.send(line, ("unavailable", f"{error.strerror}{where}"))
        os._exit(1)
    child = os.fork()
    if child == 0:
        line.close()
        # A group that cannot be entered counts as unavailable: the other limits apply.
        with contextlib.suppress(OSError):
            group.enter()
        _examine(job, results, setting)
    os.close(job)
    os.close(results)
    _wait_for_end(child, line)
    os._exit(0)


def _examine(job: int, results: int, setting: Setting) -> NoReturn:
    random.seed(0)
    with socket.socket(fileno=results) as channel:
        try:
            controller.run(job, channel, setting)
        except BaseException as error:
            wire.send(channel, ("failed", f"{type(error).__name__}: {error}"))
            os._exit(1)
    os._exit(0)


def _wait_for_end(child: int, line: socket.socket) -> None:
    """Wait for the jail's first process, and so for everything in it; kill it if the host hangs up."""
    handle = os.pidfd_open(child)
    ready, _, _ = select.select([handle, line.fileno()], [], [])
    if handle not in ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
