"""Attempts to escape from the sandbox or to get an undeserved verdict. All run inside the sandbox."""

import contextlib
import socket
from pathlib import Path
from time import monotonic

import pytest

from retroformer.environments.programming import sandbox
from retroformer.environments.programming.jail import wire
from retroformer.environments.programming.judging import judge
from retroformer.environments.programming.problems import Problem, Verdict
from retroformer.environments.programming.sandbox import Limits
from tests.support.attempts import DAEMON, EXHAUSTING, FORGING, KILLING, REACHING, SLEEPING, Attempt

TIGHT = Limits(cpu_seconds=1, wall_seconds=120.0, memory_bytes=192 << 20, file_bytes=1 << 20, files=20, threads=8)
BRIEF = TIGHT.model_copy(update={"wall_seconds": 1.2})
"""Limits for code that wall-clock time may stop: on a busy machine it does so sooner, with the same verdict."""
SECRET = "hunter2-of-the-host"

DOUBLE = Problem(
    id="double",
    language="python",
    prompt='def double(x):\n    """Twice x."""\n',
    entry_point="double",
    tests=("assert double(21) == 42", "assert double('ab') == 'abab'"),
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    (folder / "secret").write_text(SECRET)
    folder.chmod(0o777)
    return folder


def _attempt(attempt: Attempt, host: Path, limits: Limits) -> None:
    source = attempt.source.replace("HOST_FILE", str(host / "secret")).replace("HOST_FOLDER", str(host))
    judgement = judge(DOUBLE, source, limits)
    feedback = " ".join(test.feedback for test in judgement.results)
    assert (judgement.verdict, feedback) == (attempt.verdict, feedback)
    assert attempt.output in feedback
    assert SECRET not in feedback
    assert sorted(path.name for path in host.iterdir()) == ["secret"]
    assert DAEMON not in _process_names()


def _process_names() -> set[str]:
    names = set[str]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # A process or one of its threads may end while it is inspected.
            for thread in (process / "task").iterdir():
                with contextlib.suppress(OSError):
                    names.add((thread / "comm").read_text().strip())
    return names


@pytest.mark.parametrize("attempt", EXHAUSTING.values(), ids=EXHAUSTING)
def test_code_that_exhausts_a_resource_is_stopped(attempt: Attempt, host: Path) -> None:
    _attempt(attempt, host, BRIEF if attempt.verdict == Verdict.TIMEOUT else TIGHT)


def test_computation_ends_by_cpu_time_long_before_the_wall_clock_limit(host: Path) -> None:
    endless = Attempt("def double(x):\n    while True:\n        pass\n", Verdict.TIMEOUT, "no answer within 1 s")

    _attempt(endless, host, TIGHT.model_copy(update={"wall_seconds": 3600.0}))


@pytest.mark.parametrize("attempt", SLEEPING.values(), ids=SLEEPING)
def test_code_that_never_answers_is_a_timeout(attempt: Attempt, host: Path) -> None:
    _attempt(attempt, host, BRIEF)


@pytest.mark.parametrize("attempt", REACHING.values(), ids=REACHING)
def test_the_host_cannot_be_reached(attempt: Attempt, host: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0HOST_SOCKET")
        listener.listen()
        _attempt(attempt, host, TIGHT)


@pytest.mark.parametrize("attempt", KILLING.values(), ids=KILLING)
def test_no_other_process_can_be_reached_or_left_behind(attempt: Attempt, host: Path) -> None:
    _attempt(attempt, host, TIGHT)


@pytest.mark.parametrize("attempt", FORGING.values(), ids=FORGING)
def test_no_verdict_can_be_forged(attempt: Attempt, host: Path) -> None:
    _attempt(attempt, host, TIGHT)


def test_recursion_without_a_limit_ends_by_memory_or_by_time(host: Path) -> None:
    source = "import sys\nsys.setrecursionlimit(10**9)\ndef double(x):\n    return double(x)\n"

    judgement = judge(DOUBLE, source, BRIEF)

    assert judgement.verdict in {Verdict.CRASH, Verdict.TIMEOUT}


def _programs(*commands: str) -> list[sandbox.Report]:
    """Return the results of shell commands in a jail that may start processes, as for a compiler."""
    steps = [
        {
            "arguments": ["/usr/bin/env", "-i", "/bin/sh", "-c", command],
            "files": {},
            "variables": {},
            "compiling": True,
            "needed": False,
        }
        for command in commands
    ]
    outcome = sandbox.run({"kind": "commands", "steps": steps}, TIGHT, 300.0, ("/usr", "/bin"))
    return [report[2:] for report in outcome.reports if report[0] == "command"]


def test_a_daemon_does_not_survive_even_where_processes_may_be_started() -> None:
    daemon = "(setsid sh -c 'sleep 6543 & sleep 6543' >/dev/null 2>&1 3>&- &) ; sleep 0.3; echo begun >&3"

    ((code, _, late, _, answer, _),) = _programs(daemon)

    assert (code, late, answer) == (0, False, b"begun\n")
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"6543" in _read(path)]


def test_a_compiler_sees_no_network_no_host_and_no_other_process(host: Path) -> None:
    looks = (f"cat {host}/secret", "ls /proc/1", "touch /usr/written", "kill -9 1", "cat </dev/tcp/127.0.0.1/80")

    reports = _programs(*looks)

    assert len(reports) == len(looks)
    assert all(code != 0 and SECRET.encode() not in answer + errors for code, _, _, _, answer, errors in reports)


def test_endless_output_of_a_program_is_cut_off() -> None:
    ((_, _, _, much, answer, errors),) = _programs("while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy >&2; done")

    assert much
    assert len(answer) + len(errors) < 1 << 20


def test_messages_that_came_in_time_are_received_and_half_a_message_is_late() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        reports = [("passed", ""), ("wrong", "came out as 3")]
        for report in reports:
            wire.send(writer, report)
        assert [wire.receive(reader, 99, end=monotonic()) for _ in reports] == reports
        writer.sendall(wire.encode("passed")[:3])
        with pytest.raises(TimeoutError):
            wire.receive(reader, 99, end=monotonic() + 0.05)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
