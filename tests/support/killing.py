"""Kill -9 at chosen moments of a stage's work."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.runs import start

_PATIENCE_SECONDS = 60.0


def run_and_kill(folder: Path, room: str, arguments: list[str], moments: Iterable[Callable[[], bool]]) -> int:
    """Start the command once for each moment and kill it when that has come; the number of runs that were killed.

    A run that ends by itself before its moment is not killed, and the last of them.
    """
    killed = 0
    for moment in moments:
        process = start(folder, room, arguments)
        children: set[int] = set()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while process.poll() is None and not moment() and time.monotonic() < deadline:
            children |= children_of(process.pid)
            time.sleep(0.005)
        if process.poll() is not None:
            process.communicate()
            return killed
        children |= children_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed += 1
        _await_end_of(children)
    return killed


def children_of(pid: int) -> set[int]:
    """Process ids of the children that a stage has now."""
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()


def _await_end_of(pids: set[int]) -> None:
    """Environment processes of a killed stage end by themselves: nobody is left to ask them anything."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while alive := {pid for pid in pids if Path(f"/proc/{pid}").exists()}:
        assert time.monotonic() < deadline, f"processes {alive} outlived their stage"
        time.sleep(0.01)


def finish(folder: Path, room: str, arguments: list[str]) -> str:
    """Run the command to its end and return what it said."""
    status, out, err = _ended(folder, room, arguments)
    assert status == 0, err
    return out


def refused(folder: Path, room: str, arguments: list[str]) -> str:
    """Run the command to its end, which is not a good one, and return why."""
    status, _, err = _ended(folder, room, arguments)
    assert status != 0
    return err


def _ended(folder: Path, room: str, arguments: list[str]) -> tuple[int, str, str]:
    process = start(folder, room, arguments)
    try:
        out, err = process.communicate(timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, err
