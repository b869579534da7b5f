"""First process of the jail: it orders the runs, measures the time, and reports the result of each test.

It runs no foreign code. A test and the solution under test run in separate processes, in process namespaces that cannot
see each other, each under a supervisor; so a test has no authority either, whoever wrote it.
"""

import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import linux, supervisor, tester, wire
from .confinement import JailLimits, Setting, drop_rights, keep_only

_JOB_BYTES = 1 << 28
_REPORT_BYTES = 1 << 16
_OWN_BYTES = 1 << 30
_HIDDEN_TIME_FACTOR = 2
"""Wall-clock time for all hidden tests together, as a multiple of the time for one test."""

Result = tuple[str, str]
"""Verdict, and its output."""
PASSED: Result = ("passed", "")
LATE: Result = ("late", "")


def longest(wall_seconds: float, tests: int, hidden: bool) -> float:
    """Return the wall-clock limit in seconds for tests of which each may take `wall_seconds`."""
    return _HIDDEN_TIME_FACTOR * wall_seconds if hidden else tests * (wall_seconds + 1.0)


class Unconfined(Exception):
    """Error: a supervisor could not confine a process; the jail failed, and nothing was run in it."""


def run(job: int, results: socket.socket, setting: Setting) -> None:
    """Run the job; report ("result", index, verdict, output) or ("command", index, ...) on each, then ("done",)."""
    candidates, testers = _start_supervisor(setting, job, results), _start_supervisor(setting, job, results)
    linux.forbid_inspection()
    with open(job, "rb", closefd=False) as file:
        work = wire.decode(file.read(_JOB_BYTES))
    keep_only(candidates.fileno(), testers.fileno(), results.fileno())
    limits = setting["limits"]
    drop_rights({**limits, "memory_bytes": _OWN_BYTES, "cpu_seconds": 10**6, "file_bytes": 0}, files=True)
    try:
        if work["kind"] == "commands":
            _commands(work, candidates, results, limits)
        else:
            Controller(work, candidates, testers, results, limits).run()
    except Unconfined as error:
        wire.send(results, ("unconfined", str(error)))
        return
    wire.send(results, ("done",))


def _start_supervisor(setting: Setting, job: int, results: socket.socket) -> socket.socket:
    """Start a supervisor, the first process of its own process namespace. It never learns the job."""
    orders, supervisor_end = socket.socketpair()
    if os.fork():
        supervisor_end.close()
        return orders
    # A process can create only one such namespace, so this one sits between controller and supervisor, and waits.
    try:
        os.close(job)
        results.close()
        orders.close()
        linux.unshare("process")
        if os.fork() == 0:
            supervisor.run(supervisor_end, setting)
            os._exit(0)
        keep_only()
        os.wait()
    finally:
        os._exit(1)


def _commands(work: dict[str, Any], orders: socket.socket, results: socket.socket, limits: JailLimits) -> None:
    left = _HIDDEN_TIME_FACTOR * limits["wall_seconds"]
    for index, step in enumerate(work["steps"]):
        start = time.monotonic()
        seconds = max(0.0, left) if step["needed"] and not step["compiling"] else None
        wire.send(orders, ("command", step["files"], step["arguments"], step["variables"], step["compiling"], seconds))
        report = _answer(orders)
        wire.send(results, ("command", index, *report))
        if report[0] != 0 and step["needed"]:
            return
        if not step["compiling"]:
            left -= time.monotonic() - start


def _answer(orders: socket.socket) -> Any:
    """Return a supervisor's answer to an order. Raises Unconfined."""
    report = wire.receive(orders, _JOB_BYTES)
    if report[0] == "unconfined":
        raise Unconfined(report[1])
    return report


class Controller(NamedTuple):
    """Runner of groups of tests of one solution: each group against its own process, up to its first failure."""

    work: dict[str, Any]
    candidates: socket.socket
    testers: socket.socket
    results: socket.socket
    limits: JailLimits

    def run(self) -> None:
        """Run all groups. Raises Unconfined."""
        for group in self.work["groups"]:
            for index, verdict, output in self._group(group):
                wire.send(self.results, ("result", index, verdict, output[: tester.SHOWN]))

    def _group(self, tests: list[dict[str, Any]]) -> Iterator[tuple[int, str, str]]:
        report: Result | None = None
        with self._start(tests) as source:
            deadline = time.monotonic() + _HIDDEN_TIME_FACTOR * self.limits["wall_seconds"]
            for test in tests:
                try:
                    report = _next_report(source, min(deadline, time.monotonic() + self.limits["wall_seconds"]))
                except (EOFError, wire.Unreadable):
                    report = None
                if report != PASSED:
                    break
                yield test["index"], *PASSED
        solution, testing = _stop(self.candidates), _stop(self.testers)
        if report != PASSED:
            yield test["index"], *self._verdict(report, solution, testing)

    def _start(self, tests: list[dict[str, Any]]) -> socket.socket:
        """Start the solution and its tests, connected to each other; return the socket of the reports."""
        wire.send(self.candidates, ("solution", self.work["source"]))
        work = {name: self.work[name] for name in ("preamble", "entry_point")}
        work |= {"tests": tests, "answer_bytes": self.limits["answer_bytes"]}
        with _receive_socket(self.candidates) as channel:
            wire.send(self.testers, ("tests", work))
            socket.send_fds(self.testers, [b"."], [channel.fileno()])
        return _receive_socket(self.testers)

    def _verdict(self, report: Result | None, solution: "ProcessEnd", testing: "ProcessEnd") -> Result:
        limit = self.limits["cpu_seconds"]
        timeout = "timeout", f"no answer within {limit} s"
        if report == LATE:
            return timeout
        if report == (tester.ENDED, ""):
            return timeout if solution.out_of_time(limit) else ("crash", f"the program {solution} before it answered")
        if report is not None:
            return report
        if testing.out_of_time(limit):
            return timeout
        # The agent's own test may end or disturb its process; otherwise the program's answer caused this.
        if self.work["own"]:
            return "harness", f"the test's process {testing} before it reported"
        return "crash", f"the program's answer cannot be compared: the test's process {testing}"


def _receive_socket(orders: socket.socket) -> socket.socket:
    """Return the socket that a supervisor passes with its answer. Raises Unconfined."""
    _answer(orders)
    _, (descriptor,), _, _ = socket.recv_fds(orders, 1, 1)
    return socket.socket(fileno=descriptor)


def _next_report(source: socket.socket, end: float) -> Result:
    """Return a tester's next report; with the agent's own tests it may be anything. Raises EOFError, Unreadable.

    Nothing is read after LATE.
    """
    try:
        report = wire.receive(source, _REPORT_BYTES, end=end)
    except TimeoutError:
        return LATE
    match report:
        case (("passed" | "wrong" | "crash" | "harness" | tester.ENDED) as verdict, str(output)):
            return verdict, output
    raise wire.Unreadable("it is no report")


class ProcessEnd(NamedTuple):
    """End of a process: its exit code, negative for a signal, and its CPU seconds."""

    code: int
    seconds: float

    def out_of_time(self, limit: int) -> bool:
        """Return True if the CPU limit ended it.

        SIGXCPU comes from the soft limit, whatever was measured. A program that survives it is killed at the hard
        limit; if anything else kills it then, it was past the soft limit.
        """
        return self.code == -signal.SIGXCPU or (self.code == -signal.SIGKILL and self.seconds >= limit)

    def __str__(self) -> str:
        if self.code >= 0:
            return f"ended itself with exit status {self.code}"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            # Real-time signals have numbers only.
            name = f"signal {-self.code}"
        return f"was ended by {name}"


def _stop(orders: socket.socket) -> ProcessEnd:
    wire.send(orders, ("stop",))
    return ProcessEnd(*wire.receive(orders, _JOB_BYTES))
