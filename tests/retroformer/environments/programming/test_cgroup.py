"""Tests of a jail's control group, created by this machine's kernel; skipped if it permits none."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.environments.programming import sandbox
from retroformer.environments.programming.jail.confinement import ControlGroup
from retroformer.environments.programming.judging import judge
from retroformer.environments.programming.problems import Problem, Verdict
from retroformer.environments.programming.sandbox import Limits
from tests.support.killing import children_of
from tests.support.waiting import becomes_true

GROUPS = Path("/sys/fs/cgroup")
MEMORY_BYTES = 64 << 20


def _groups() -> set[Path]:
    # Other tests' jails come and go meanwhile, and `rglob` fails at a folder that is gone.
    folders = (Path(parent, name) for parent, names, _ in os.walk(GROUPS) for name in names)
    return {folder for folder in folders if folder.name.startswith("retroformer-")}


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    with ControlGroup(MEMORY_BYTES, processes=8) as made:
        if not _groups():
            pytest.skip("this machine lets us make no control group")
        yield made


IN_THE_GROUP = """
import os, sys
work, *entries = sys.argv[1:]
try:
    for entry in entries:
        with open(entry, "w") as file:
            file.write(str(os.getpid()))
    exec(work)
except BaseException:
    os._exit(3)
os._exit(0)
"""


def _status_in(group: ControlGroup, work: str) -> int:
    """Return the exit status of a small process of the group that executes this code.

    A fork of this process would not do: the page tables of a large one take the memory of the group.
    """
    entries = [str(folder / "cgroup.procs") for folder in group._folders]
    return subprocess.run([sys.executable, "-S", "-c", IN_THE_GROUP, work, *entries], check=False).returncode


def test_processes_of_a_group_share_one_bound_on_memory(group: ControlGroup) -> None:
    assert _status_in(group, "bytearray(16 << 20)") == 0
    assert group.processes_killed() == 0

    one_of_two = "part = bytearray(40 << 20)\nif os.fork() == 0:\n    more = bytearray(40 << 20)\n    os._exit(0)\n"
    ended = _status_in(group, f"{one_of_two}os._exit(os.WIFSIGNALED(os.wait()[1]) and 9)")

    assert ended in (9, -signal.SIGKILL)
    assert group.processes_killed() in (1, 2)


def test_processes_of_a_group_share_one_bound_on_their_number(group: ControlGroup) -> None:
    many = "for _ in range(20):\n    if os.fork() == 0:\n        os.read(os.pipe()[0], 1)\n"
    end = (
        "\nimport signal\nos.setpgid(0, 0)\ntry:\n    {}\nfinally:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    )
    work = end.format(many.replace("\n", "\n    ").rstrip()) + "    os.killpg(0, signal.SIGTERM)\n"

    assert _status_in(group, work) == 3


def test_a_group_is_gone_after_its_jail(group: ControlGroup) -> None:
    assert _groups()

    group.remove()

    assert not [path for path in _groups() if path.name == f"retroformer-{os.getpid()}"]


def test_everything_of_a_jail_is_in_one_group_which_is_gone_after_it(group: ControlGroup) -> None:
    group.remove()
    problem = Problem(id="one", language="python", prompt="", entry_point="f", tests=("assert f(1) == 1",))
    source = "import time\ndef f(x):\n    time.sleep(10**6)\n"
    sandbox.require()
    verdicts: list[Verdict] = []
    limits = Limits(cpu_seconds=1, wall_seconds=60.0)
    judging = threading.Thread(target=lambda: verdicts.append(judge(problem, source, limits).verdict))
    judging.start()

    seen: dict[Path, frozenset[int]] = {}
    descendants: set[int] = set()
    while judging.is_alive() and not (len(descendants) == len(JAIL) and set(seen.values()) == {frozenset(descendants)}):
        folders = [path for path in _groups() if int(path.name.split("-")[1]) in _descendants(os.getpid())]
        seen = {path: _processes(path) for path in folders}
        roots = {int(path.name.split("-")[1]) for path in folders}
        builders = {builder for root in roots for builder in children_of(root)}
        descendants = {process for builder in builders for process in _descendants(builder)}
    for leaf in (process for process in descendants if not children_of(process)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(leaf, signal.SIGKILL)
    judging.join()

    assert len(verdicts) == 1
    assert len(descendants) == len(JAIL)
    assert set(seen.values()) == {frozenset(descendants)}
    # The job process removes its groups a moment after it has reported.
    assert becomes_true(lambda: not any(path.exists() for path in seen))


JAIL = ("controller", "between", "supervisor", "candidate", "between", "supervisor", "tester")


def _processes(folder: Path) -> frozenset[int]:
    try:
        return frozenset(int(line) for line in (folder / "cgroup.procs").read_text().split())
    except OSError:
        return frozenset()


def _descendants(pid: int) -> set[int]:
    children = {child for task in _tasks(pid) for child in _children(task)}
    return children | {process for child in children for process in _descendants(child)}


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _children(task: Path) -> list[int]:
    try:
        return [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        return []
