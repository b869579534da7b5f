"""Kill -9 at chosen moments of a stage's work."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support.runs import start
from tests.support.waiting import becomes_true

_PATIENCE_SECONDS = 300.0
"""Upper bound for any run on a loaded machine."""


def run_and_kill(folder: Path, room: str, arguments: list[str], moments: Iterable[Callable[[], bool]]) -> int:
    """Start the command once for each condition and kill it when that holds; return the number of killed runs.

    A run that ends by itself first is not killed, and no further run is started.
    """
    killed = 0
    for moment in moments:
        if start_and_kill(folder, room, arguments, _of_any_process(moment)) is not None:
            return killed
        killed += 1
    return killed


def start_and_kill(folder: Path, room: str, arguments: list[str], moment: Callable[[int], bool]) -> str | None:
    """Start the command and kill it when the condition on its process id holds.

    Returns its output if it ended by itself first, and None if it was killed.
    """
    process = start(folder, room, arguments)
    children: set[int] = set()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None and not moment(process.pid) and time.monotonic() < deadline:
        children |= children_of(process.pid)
        time.sleep(0.005)
    children |= children_of(process.pid)
    process.send_signal(signal.SIGKILL)  # Has no effect if it has ended.
    out, err = process.communicate()
    if process.returncode != -signal.SIGKILL:
        return out + err
    assert time.monotonic() < deadline, f"the moment of a kill did not come: {out + err}"
    _await_end_of(children)
    return None


def _of_any_process(moment: Callable[[], bool]) -> Callable[[int], bool]:
    return lambda _: moment()


def after_cpu_seconds(seconds: float) -> Callable[[int], bool]:
    """Return a condition that is true once a process has used this much CPU time."""
    return lambda pid: cpu_seconds(pid) >= seconds


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, which measure its progress even on a busy machine."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> set[int]:
    """Return the process ids of a stage's current children."""
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except OSError:
        return set()


def _await_end_of(pids: set[int]) -> None:
    """Wait until the environment processes of a killed stage have ended by themselves."""
    assert becomes_true(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def finish(folder: Path, room: str, arguments: list[str]) -> str:
    """Run the command to its end, which must be a success, and return its output."""
    status, out, err = _ended(folder, room, arguments)
    assert status == 0, err
    return out


def refused(folder: Path, room: str, arguments: list[str]) -> str:
    """Run the command to its end, which must be a refusal, and return the message."""
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
