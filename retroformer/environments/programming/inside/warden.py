"""First process of the inner process namespace: starts one piece of judged code at a time, and ends all of it.

It is started before the examiner learns the tests, so that nothing it hands on by forking knows them. Whatever the code
leaves behind, however detached, is in the namespace and gone before the warden says how the code ended.
"""

import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import NoReturn

from . import candidate, filesystem, linux, wire
from .confinement import Limits, Setting, keep_only, renounce

_ORDER_BYTES = 1 << 26
_ERROR_BYTES = 1 << 14
ANSWER_DESCRIPTOR = 3


def run(orders: socket.socket, setting: Setting) -> None:
    """Do what the examiner orders, until it is gone: ("start", source), ("stop",) or ("command", ...)."""
    linux.die_with_parent(signal.SIGKILL)
    linux.forbid_inspection()
    os.setsid()
    keep_only(orders.fileno())
    started: tuple[int, float] = (0, 0.0)
    while True:
        try:
            order, *rest = wire.receive(orders, _ORDER_BYTES)
        except EOFError:
            return
        if order == "start":
            started = _start(orders, rest[0], setting["limits"]), _children_seconds()
        elif order == "stop":
            status = _end_all(started[0])
            wire.send(orders, (status, _children_seconds() - started[1]))
        else:
            wire.send(orders, _command(setting, *rest))


def _children_seconds() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _end_all(child: int) -> int:
    """Kill everything else in the namespace and wait until it is gone; the exit code of `child`, negative if killed."""
    code = 0
    _kill_all()
    while True:
        try:
            ended, status = os.wait()
        except ChildProcessError:
            return code
        if ended == child:
            code = os.waitstatus_to_exitcode(status)


def _kill_all() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        return


def _start(orders: socket.socket, source: str, limits: Limits) -> int:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        _become_candidate(theirs, source, limits)
    theirs.close()
    with ours:
        socket.send_fds(orders, [b"."], [ours.fileno()])
    return child


def _become_candidate(channel: socket.socket, source: str, limits: Limits) -> NoReturn:
    try:
        os.setsid()
        filesystem.fresh_work(limits["file_bytes"], limits["files"])
        keep_only(channel.fileno())
        renounce(limits)
    except OSError as error:
        wire.send(channel, ("unconfined", str(error)))
        os._exit(0)
    try:
        candidate.serve(channel, source)
    except BaseException:
        # Whatever it was, the examiner sees an answer that is missing.
        os._exit(1)
    os._exit(0)


def _command(
    setting: Setting, files: dict[str, str], arguments: list[str], variables: dict[str, str], compiling: bool
) -> tuple[int, float, bool, bool, bytes, bytes]:
    """Run a program and report (exit code, CPU seconds, out of time, too much output, answer, errors)."""
    for name, text in files.items():
        Path(filesystem.BUILD, name).write_text(text, encoding="utf-8", errors="surrogatepass")
    limits = setting["compiling" if compiling else "limits"]
    before = _children_seconds()
    answer, answer_end = os.pipe()
    errors, errors_end = os.pipe()
    child = os.fork()
    if child == 0:
        _become_program(arguments, variables, limits, compiling, answer_end, errors_end)
    os.close(answer_end)
    os.close(errors_end)
    collected, late, much = _collect({answer: limits["answer_bytes"], errors: _ERROR_BYTES}, limits["wall_seconds"])
    code = _end_all(child) if late or much else _wait_and_end(child)
    os.close(answer)
    os.close(errors)
    seconds = _children_seconds() - before
    return code, seconds, late, much, collected[answer], collected[errors]


def _wait_and_end(child: int) -> int:
    _, status = os.waitpid(child, 0)
    _end_all(0)
    return os.waitstatus_to_exitcode(status)


def _collect(limits: dict[int, int], seconds: float) -> tuple[dict[int, bytes], bool, bool]:
    """What arrives until all ends are closed; whether time ran out; whether one brought more than its limit."""
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


def _become_program(
    arguments: list[str], variables: dict[str, str], limits: Limits, compiling: bool, answer: int, errors: int
) -> NoReturn:
    try:
        os.setsid()
        filesystem.fresh_work(limits["file_bytes"], limits["files"])
        if not compiling:
            filesystem.lock(filesystem.BUILD)
        os.dup2(errors, 2)
        # Through a high number, in case `errors` or another file is where the answer belongs.
        high = os.dup2(answer, 60)
        os.dup2(high, ANSWER_DESCRIPTOR)
        keep_only(2, ANSWER_DESCRIPTOR)
        renounce(limits, processes=compiling, programs=True)
        os.set_inheritable(ANSWER_DESCRIPTOR, True)
        os.execve(arguments[0], arguments, variables)
    except OSError as error:
        os.write(2, f"cannot be run: {error}".encode())
        os._exit(126)
