"""First process of the jail: runs the tests against a solution that lives in another process.

What a test calls is a stand-in that passes plain arguments on and brings plain values back, so an assertion compares
exact built-in types here, where the judged code has no memory, no name, no file and no signal to reach.
"""

import builtins
import importlib
import os
import random
import signal
import socket
from collections.abc import Iterator
from typing import Any, NoReturn

from . import linux, warden, wire
from .confinement import Limits, Setting, keep_only, renounce

_JOB_BYTES = 1 << 28
_SHOWN = 500
_OWN_BYTES = 1 << 30
SEEN = "__seen__"
"""The name under which a test keeps the value that it is about."""

_NEVER_RAISED = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions that end a loop in silence: raised by a solution, they must not end the test's."""


class _Expired(BaseException):
    """The time of a test is over."""


class _Died(BaseException):
    """The solution's process is gone."""


class _Raised(Exception):
    """An exception of the solution that has no counterpart here."""


def run(job: int, results: socket.socket, setting: Setting) -> None:
    """Read the job, do it, and report each result as ("result", index, verdict, output), at last ("done",)."""
    orders, theirs = socket.socketpair()
    linux.unshare("process")
    if os.fork() == 0:
        results.close()
        os.close(job)
        orders.close()
        warden.run(theirs, setting)
        os._exit(0)
    theirs.close()
    linux.forbid_inspection()
    with open(job, "rb", closefd=False) as file:
        work = wire.decode(file.read(_JOB_BYTES))
    keep_only(orders.fileno(), results.fileno())
    limits = setting["limits"]
    renounce({**limits, "memory_bytes": _OWN_BYTES, "cpu_seconds": 10**6, "file_bytes": 0})
    if work["kind"] == "commands":
        _commands(work["steps"], orders, results)
    else:
        Examiner(work, orders, results, limits).run()
    wire.send(results, ("done",))


def _commands(steps: list[Any], orders: socket.socket, results: socket.socket) -> None:
    for index, step in enumerate(steps):
        wire.send(orders, ("command", step["files"], step["arguments"], step["variables"], step["compiling"]))
        report = wire.receive(orders, _JOB_BYTES)
        wire.send(results, ("command", index, *report))
        if report[0] != 0 and step["needed"]:
            return


class Examiner:
    """Groups of tests of one solution: each group against a process of its own, up to its first failure."""

    def __init__(self, work: dict[str, Any], orders: socket.socket, results: socket.socket, limits: Limits) -> None:
        self._work, self._orders, self._results, self._limits = work, orders, results, limits
        self._expired = self._died = False
        self._unreadable = self._unsendable = self._raised_text = ""
        self._raised: BaseException | None = None
        self._channel: socket.socket | None = None

    def run(self) -> None:
        """All groups."""
        signal.signal(signal.SIGALRM, self._expire)
        for group in self._work["groups"]:
            for index, verdict, output in self._group(group):
                wire.send(self._results, ("result", index, verdict, output[:_SHOWN]))

    def _expire(self, *_: object) -> NoReturn:
        self._expired = True
        raise _Expired

    def _group(self, tests: list[dict[str, Any]]) -> Iterator[tuple[int, str, str]]:
        self._expired = self._died = False
        self._unreadable = self._unsendable = self._raised_text = ""
        self._raised = None
        wire.send(self._orders, ("start", self._work["source"]))
        _, (descriptor,), _, _ = socket.recv_fds(self._orders, 1, 1)
        loaded, failed, caught = False, None, None
        with socket.socket(fileno=descriptor) as channel:
            self._channel = channel
            for test in tests:
                namespace: dict[str, Any] = {"__name__": "tests"}
                caught = self._caught(channel, test, namespace, loaded)
                loaded = True
                failed = caught or self._expired or self._died or self._unreadable or self._unsendable
                if failed:
                    break
                yield test["index"], "passed", ""
        code, seconds = self._stop()
        if failed:
            yield test["index"], *self._judged(caught, namespace, code, seconds)

    def _stop(self) -> Any:
        wire.send(self._orders, ("stop",))
        return wire.receive(self._orders, _JOB_BYTES)

    def _caught(
        self, channel: socket.socket, test: dict[str, Any], namespace: dict[str, Any], loaded: bool
    ) -> BaseException | None:
        """What a test raised, if anything: of the solution, of the test, or of the alarm."""
        try:
            self._in_time(channel, test, namespace, loaded)
        except BaseException as error:
            return error
        return None

    def _in_time(self, channel: socket.socket, test: dict[str, Any], namespace: dict[str, Any], loaded: bool) -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, self._limits["wall_seconds"])
            if not loaded:
                self._load(channel)
            self._try(test, namespace)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _load(self, channel: socket.socket) -> None:
        kind, *rest = self._answer(channel)
        if kind == "unconfined":
            self._unsendable = f"the solution could not be confined: {rest[0]}"
            raise _Died
        if kind == "raised":
            self._raise(*rest)

    def _try(self, test: dict[str, Any], namespace: dict[str, Any]) -> None:
        random.seed(0)
        exec(compile(self._work["preamble"], "<preamble>", "exec"), namespace)
        namespace |= {name: importlib.import_module(name) for name in test["modules"]}
        for name in test["names"]:
            if name == self._work["entry_point"] or name not in namespace:
                namespace[name] = StandIn(name, self)
        exec(compile(test["code"], "<test>", "exec"), namespace)

    def call(self, target: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The value that a function of the solution, or of one of its objects, returns, or its exception."""
        if self._channel is None or self._died or self._expired:
            raise _Died
        plain = [wire.Named(_name(value)) if isinstance(value, StandIn | type) else value for value in arguments]
        try:
            wire.send(self._channel, (target, name, plain, keywords))
        except wire.Unsendable as error:
            self._unsendable = str(error)
            raise
        except OSError as error:
            self._died = True
            raise _Died from error
        kind, *rest = self._answer(self._channel)
        if kind == "raised":
            self._raise(*rest)
        value, changed = rest
        for ours, theirs in zip(arguments, changed, strict=True):
            _update(ours, theirs)
        return value

    def _answer(self, channel: socket.socket) -> Any:
        try:
            answer = wire.receive(channel, self._limits["answer_bytes"], lambda index: Remote(index, self))
            if not _well_formed(answer):
                raise wire.Unreadable("it is no answer to a call")
        except EOFError as error:
            self._died = True
            raise _Died from error
        except (wire.Unreadable, MemoryError) as error:
            self._unreadable = str(error) or "it is too large"
            raise _Died from error
        return answer

    def _raise(self, name: str, text: str) -> NoReturn:
        kind = getattr(builtins, name, None)
        plain = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NEVER_RAISED)
        try:
            error = kind(text) if plain and isinstance(kind, type) else _Raised(f"{name}: {text}")
        except TypeError:
            # A few built-in exceptions want more than a text.
            error = _Raised(f"{name}: {text}")
        self._raised = error
        self._raised_text = f"{name}: {text}"
        raise error

    def _judged(
        self, caught: BaseException | None, namespace: dict[str, Any], code: int, seconds: float
    ) -> tuple[str, str]:
        """What the test comes to. Notes taken on the way count before anything the test made of them."""
        out_of_time = self._died and code in (-signal.SIGXCPU, -signal.SIGKILL)
        if self._expired or (out_of_time and seconds >= self._limits["cpu_seconds"] * 0.9):
            return "timeout", f"no answer within {self._limits['cpu_seconds']} s"
        if self._unsendable:
            return "harness", self._unsendable
        if self._died:
            return "crash", f"the program {_ended(code)} before it answered"
        if self._unreadable:
            return "crash", f"the program's answer cannot be read: {self._unreadable}"
        if caught is None:
            return "passed", ""
        if caught is self._raised:
            return "crash", self._raised_text
        if isinstance(caught, AssertionError):
            return "wrong", _shown(namespace.get(SEEN, caught))
        return "wrong", f"{type(caught).__name__}: {_shown(caught)}"


def _well_formed(answer: object) -> bool:
    match answer:
        case ("value", _, list()) | ("raised", str(), str()) | ("unconfined", str()) | ("loaded",):
            return isinstance(answer, tuple)
    return False


class StandIn:
    """A function of the solution, called across the wall."""

    def __init__(self, name: str, examiner: Examiner) -> None:
        self.name, self._examiner = name, examiner

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._examiner.call(None, self.name, arguments, keywords)


def _name(value: "StandIn | type") -> str:
    """Under which the solution finds the function, or a built-in type that a test passes on, such as `int`."""
    return value.name if isinstance(value, StandIn) else value.__name__


class Remote(wire.Reference):
    """An object of a class of the solution, which stays with it. No operator is passed on: it equals itself alone."""

    def __init__(self, index: int, examiner: Examiner) -> None:
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "_examiner", examiner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._examiner.call(self, wire.GET, (name,), {})

    def __setattr__(self, name: str, value: object) -> None:
        self._examiner.call(self, wire.SET, (name, value), {})

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._examiner.call(self, wire.CALL, arguments, keywords)


def _update(ours: Any, theirs: Any) -> None:
    """A list, dict, set or bytearray that the solution changed is changed for the test too."""
    if type(ours) is not type(theirs) or ours == theirs:
        return
    if isinstance(ours, list | bytearray):
        ours[:] = theirs
    elif isinstance(ours, dict | set):
        ours.clear()
        ours.update(theirs)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended itself with exit status {code}"
    return f"was ended by {signal.Signals(-code).name}"


def _shown(value: object) -> str:
    try:
        text = str(value) if isinstance(value, BaseException) else repr(value)
    except Exception:
        # A class of the test may have any `__repr__`.
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
