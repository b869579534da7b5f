"""First process of an inner process namespace: starts one piece of foreign code at a time, and kills all of it.

It is started before the controller learns the job, so its forks inherit no knowledge of the tests. Everything the code
leaves behind, however detached, is in the namespace and gone before the supervisor reports how the code ended. Only the
supervisor reports whether the code was confined: it decides this before any of the code runs.
"""

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from . import candidate, confinement, linux, tester, wire
from .confinement import JailLimits, Setting, drop_rights, keep_only

_ORDER_BYTES = 1 << 26
_ERROR_BYTES = 1 << 14
_SENTENCE_BYTES = 1 << 10
_CONFINED = b"confined"
ANSWER_DESCRIPTOR = 3


def run(orders: socket.socket, setting: Setting) -> None:
    """Execute the controller's orders until it is gone.

    ("solution", source): start it, answer ("started",) and send its channel.
    ("tests", work), and the channel of a solution: start them, answer ("started",) and send the socket of the reports.
    ("stop",): end what was started, answer (exit code, CPU seconds).
    ("command", ...): run a program to its end, answer as `_command` does.
    If something could not be confined, it did not run, and the answer is ("unconfined", why).
    """
    linux.forbid_inspection()
    os.setsid()
    keep_only(orders.fileno())
    started = 0
    while True:
        try:
            order, *rest = wire.receive(orders, _ORDER_BYTES)
        except EOFError:
            return
        try:
            if order == "solution":
                started = _start_solution(orders, rest[0], setting["limits"])
            elif order == "tests":
                started = _start_tests(orders, rest[0], setting["limits"])
            elif order == "stop":
                wire.send(orders, _end_all(started))
            else:
                wire.send(orders, _command(setting, *rest))
        except _Unconfined as error:
            wire.send(orders, ("unconfined", str(error)))


class _Unconfined(Exception):
    """Error: a process could not be confined, so it ended before it ran any foreign code."""


def _end_all(child: int) -> tuple[int, float]:
    """Kill everything else in the namespace, wait until it is gone, and return how `child` ended.

    The result is its exit code, negative if killed, and its CPU seconds.
    """
    ended = 0, 0.0
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    while True:
        try:
            process, status, used = os.wait3(0)
        except ChildProcessError:
            return ended
        if process == child:
            ended = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _fork(confine: Callable[[], None], kept: list[int], foreign: Callable[[], NoReturn]) -> int:
    """Fork a confined child that starts with the foreign code; return its process id. Raises _Unconfined.

    kept: files that it keeps, besides the pipe on which it confirms here that it is confined.
    """
    status, child_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            keep_only(*kept, child_end)
            confine()
        except BaseException as error:
            os.write(child_end, f"{type(error).__name__}: {error}".encode()[:_SENTENCE_BYTES])
            os._exit(1)
        os.write(child_end, _CONFINED)
        os.close(child_end)
        foreign()
    os.close(child_end)
    confirmation = os.read(status, _SENTENCE_BYTES)
    os.close(status)
    if confirmation != _CONFINED:
        _end_all(child)
        raise _Unconfined(confirmation.decode(errors="replace") or "it ended at once")
    return child


def _start_solution(orders: socket.socket, source: str, limits: JailLimits) -> int:
    own_end, child_end = socket.socketpair()

    def confine() -> None:
        confinement.mount_work(limits["file_bytes"], limits["files"])
        drop_rights(limits)

    with own_end, child_end:
        child = _fork(confine, [child_end.fileno()], lambda: _run_to_end(lambda: candidate.serve(child_end, source)))
        _hand_over(orders, own_end)
    return child


def _start_tests(orders: socket.socket, work: dict[str, Any], limits: JailLimits) -> int:
    _, (descriptor,), _, _ = socket.recv_fds(orders, 1, 1)
    own_end, child_end = socket.socketpair()
    with socket.socket(fileno=descriptor) as channel, own_end, child_end:
        child = _fork(
            lambda: drop_rights({**limits, "memory_bytes": tester.MEMORY_BYTES, "file_bytes": 0}),
            [channel.fileno(), child_end.fileno()],
            lambda: _run_to_end(tester.Tester(work, channel, child_end).run),
        )
        _hand_over(orders, own_end)
    return child


def _hand_over(orders: socket.socket, end: socket.socket) -> None:
    wire.send(orders, ("started",))
    socket.send_fds(orders, [b"."], [end.fileno()])


def _run_to_end(serve: Callable[[], None]) -> NoReturn:
    try:
        serve()
    except BaseException:
        # In any case, the other side notices that a message is missing.
        os._exit(1)
    os._exit(0)


def _command(
    setting: Setting,
    files: dict[str, str],
    arguments: list[str],
    variables: dict[str, str],
    compiling: bool,
    patience: float | None,
) -> tuple[int, float, bool, bool, bytes, bytes]:
    """Run a program and return (exit code, CPU seconds, out of time, too much output, answer, errors).

    patience: wall-clock seconds left for it, if that may be fewer than its limit.
    """
    for name, text in files.items():
        Path(confinement.BUILD, name).write_text(text, encoding="utf-8", errors="surrogatepass")
    limits = setting["compiling" if compiling else "limits"]
    seconds = limits["wall_seconds"] if patience is None else min(patience, limits["wall_seconds"])
    answer, answer_end = os.pipe()
    errors, errors_end = os.pipe()

    def confine() -> None:
        confinement.mount_work(limits["file_bytes"], limits["files"])
        if not compiling:
            linux.restrict_mount(confinement.BUILD, confinement.LOCKED)
        drop_rights(limits, processes=compiling, programs=True)

    try:
        child = _fork(
            confine,
            [answer_end, errors_end],
            lambda: _become_program(arguments, variables, answer_end, errors_end),
        )
    finally:
        os.close(answer_end)
        os.close(errors_end)
    collected, late, much = _collect({answer: limits["answer_bytes"], errors: _ERROR_BYTES}, seconds)
    if late or much:
        code, used = _end_all(child)
    else:
        _, status, usage = os.wait4(child, 0)
        _end_all(0)
        code, used = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    os.close(answer)
    os.close(errors)
    return code, used, late, much, collected[answer], collected[errors]


def _collect(limits: dict[int, int], seconds: float) -> tuple[dict[int, bytes], bool, bool]:
    """Return the output until all ends are closed, whether time ran out, and whether a limit was exceeded."""
    collected = dict.fromkeys(limits, b"")
    end = time.monotonic() + seconds
    waiting = set(limits)
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return collected, True, False
        for descriptor in ready:
            data = os.read(descriptor, 1 << 16)
            if not data:
                waiting.discard(descriptor)
            collected[descriptor] += data
            if len(collected[descriptor]) > limits[descriptor]:
                return collected, False, True
    return collected, False, False


def _become_program(arguments: list[str], variables: dict[str, str], answer: int, errors: int) -> NoReturn:
    try:
        # The pipe that confirms confinement is closed by now, so nothing is in the way below the two.
        high = os.dup2(answer, 60)
        os.dup2(errors, 2)
        os.dup2(high, ANSWER_DESCRIPTOR)
        os.closerange(ANSWER_DESCRIPTOR + 1, 61)
        os.set_inheritable(ANSWER_DESCRIPTOR, True)
        os.execve(arguments[0], arguments, variables)
    except OSError as error:
        os.write(2, f"cannot be run: {error}".encode())
        os._exit(126)
