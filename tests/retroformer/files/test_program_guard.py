"""Tests that a guarded program ends with everything that it started, however it or its parent ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.files.program_guard import guard_command
from tests.support.runs import ROOT
from tests.support.waiting import becomes_true

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")

FAMILY = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
# A grandchild in a session of its own, whose parent is gone.
code = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1], f'pid-{os.getpid()}').touch(); time.sleep(10**6)"
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", code, str(folder)], start_new_session=True)
    os._exit(0)
os.wait()
subprocess.Popen([sys.executable, "-c", code, str(folder)])
(folder / f"pid-{os.getpid()}").touch()
while len(list(folder.glob("pid-*"))) < 3:
    time.sleep(0.01)
print("ready", flush=True)
"""


def start(folder: Path, then: str) -> "subprocess.Popen[bytes]":
    """Start a guarded program that starts two more, and wait until all of them run."""
    command = guard_command([sys.executable, "-c", FAMILY + then, str(folder)])
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert guard.stdout is not None
    assert guard.stdout.readline() == b"ready\n"
    return guard


def close(guard: "subprocess.Popen[bytes]") -> None:
    for pipe in (guard.stdin, guard.stdout):
        assert pipe is not None
        pipe.close()


def all_gone(folder: Path) -> bool:
    pids = [path.name.removeprefix("pid-") for path in folder.glob("pid-*")]
    assert len(pids) == 3
    return not any(Path("/proc", pid).exists() for pid in pids)


@pytest.mark.parametrize(
    ("then", "status"),
    [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("os.abort()", -signal.SIGABRT)],
)
def test_nothing_outlives_a_program_that_ends_and_the_guard_ends_as_it_did(
    tmp_path: Path, then: str, status: int
) -> None:
    guard = start(tmp_path, then)
    assert guard.wait(60) == status
    assert all_gone(tmp_path)
    close(guard)


def test_a_guard_that_is_asked_to_end_kills_everything(tmp_path: Path) -> None:
    guard = start(tmp_path, "signal = __import__('signal'); signal.pause()")
    guard.terminate()
    assert guard.wait(60) == -9
    assert all_gone(tmp_path)
    close(guard)


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent_code = (
        "import subprocess, sys\nfrom retroformer.files.program_guard import guard_command\n"
        "command = [sys.executable, '-c', sys.argv[2] + 'time.sleep(10**6)', sys.argv[1]]\n"
        "subprocess.run(guard_command(command))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code, str(tmp_path), FAMILY], stdout=subprocess.PIPE, cwd=ROOT
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert becomes_true(lambda: all_gone(tmp_path))


def test_a_program_reads_and_writes_as_without_a_guard() -> None:
    echo = guard_command([sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read().upper())"])
    assert subprocess.run(echo, input=b"hello", capture_output=True, check=True).stdout == b"HELLO"
    broken = guard_command([sys.executable, "-c", "import os; os.close(1); import time; time.sleep(10**6)"])
    with subprocess.Popen(broken, stdout=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        assert guard.stdout.read() == b"", "the guard holds the output open"
        guard.terminate()


def test_a_program_that_cannot_be_started_says_why() -> None:
    done = subprocess.run(guard_command(["no-such-program"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "no-such-program cannot be started: No such file or directory\n")


def test_a_guard_whose_parent_is_already_gone_ends_at_once(tmp_path: Path) -> None:
    command = list(guard_command([sys.executable, "-c", "import time; time.sleep(10**6)"]))
    command[4] = str(os.getppid())
    assert subprocess.run(command, check=False).returncode == -9
