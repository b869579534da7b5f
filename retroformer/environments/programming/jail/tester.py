"""Runner of one group of tests against a solution in another process.

It is confined like the solution, and holds only the channel to the solution and the socket for its reports. A test
calls stand-ins that send plain arguments and receive plain values, so an assertion compares exact built-in types here,
where the judged code can reach no memory, name, file or signal. CPU time is limited here too, since comparing a value
chosen by the solution may take arbitrarily long.
"""

import builtins
import contextlib
import importlib
import random
import socket
from typing import Any, NoReturn

from . import wire

SHOWN = 500
"""Maximum number of characters of a value or an exception in a report."""
SEEN = "__seen__"
"""Name under which a test stores the value it checks."""
ENDED = "ended"
"""Report on a test during which the solution's process ended; the supervisor knows how it ended."""
MEMORY_BYTES = 1 << 30
"""Address space limit: the largest answer, decoded, may be a hundred times as large as it was encoded."""
ARGUMENT_DEPTH = wire.MAXIMUM_DEPTH + 50
"""Maximum nesting of arguments, above that of answers, so that a test can wrap an answer and pass it on again."""

_NEVER_RAISED = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Exceptions that end a loop silently: raised by a solution, they must not end the test's loop."""


class _Ended(BaseException):
    """Error: the solution no longer answers, or not readably."""


class _Raised(Exception):
    """Exception of the solution that has no counterpart here."""


class Tester:
    """One group of tests, and the state of the solution they run against."""

    def __init__(self, work: dict[str, Any], channel: socket.socket, reports: socket.socket) -> None:
        self._work, self._channel, self._reports = work, channel, reports
        self._ended = self._loaded = False
        self._unreadable = self._unsendable = self._raised_text = ""
        self._raised: BaseException | None = None

    def run(self) -> None:
        """Report (verdict, output) on each test, up to the first that does not pass."""
        for test in self._work["tests"]:
            namespace: dict[str, Any] = {"__name__": "tests"}
            caught: BaseException | None = None
            try:
                self._load()
                self._try(test, namespace)
            except BaseException as error:  # The test's own, or the solution's.
                caught = error
            verdict, output = self._verdict(caught, namespace)
            wire.send(self._reports, (verdict, output[:SHOWN]))
            if verdict != "passed":
                return

    def _load(self) -> None:
        """Wait until the solution's code has been executed, before the first test."""
        if self._loaded:
            return
        if self._answer()[0] != "loaded":
            self._refuse("it came before any call")
        self._loaded = True

    def _try(self, test: dict[str, Any], namespace: dict[str, Any]) -> None:
        random.seed(0)
        exec(compile(self._work["preamble"], "<preamble>", "exec"), namespace)
        namespace |= {name: importlib.import_module(name) for name in test["modules"]}
        for name in test["names"]:
            if name == self._work["entry_point"] or name not in namespace:
                namespace[name] = RemoteFunction(name, self)
        exec(compile(test["code"], "<test>", "exec"), namespace)

    def call(self, target: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return the value of a function of the solution, or of one of its objects; raise its exception."""
        if self._ended:
            raise _Ended
        # A function of the solution, or a built-in type that a test passes, such as `int`, goes by its name.
        plain = [
            wire.Named(value.name if isinstance(value, RemoteFunction) else value.__name__)
            if isinstance(value, RemoteFunction | type)
            else value
            for value in arguments
        ]
        try:
            wire.send(self._channel, (target, name, plain, keywords), depth=ARGUMENT_DEPTH)
        except wire.Unsendable as error:
            self._unsendable = str(error)
            raise
        except OSError as error:
            self._ended = True
            raise _Ended from error
        kind, *rest = self._answer()
        if kind != "value" or len(rest[1]) != len(arguments):
            self._refuse("it is no answer to a call")
        value, changed = rest
        for argument, new in zip(arguments, changed, strict=True):
            _update(argument, new)
        return value

    def _answer(self) -> Any:
        """Return the solution's answer; raise its exception."""
        try:
            answer = wire.receive(self._channel, self._work["answer_bytes"], lambda index: Remote(index, self))
        except EOFError as error:
            self._ended = True
            raise _Ended from error
        except (wire.Unreadable, MemoryError) as error:
            self._refuse(str(error) or "it is too large")
        match answer:
            case ("raised", str(name), str(text)) if isinstance(answer, tuple):
                self._raise(name, text)
            case ("value", _, list()) | ("loaded",) if isinstance(answer, tuple):
                pass
            case _:
                self._refuse("it is no answer to a call")
        return answer

    def _refuse(self, why: str) -> NoReturn:
        self._unreadable = why
        raise _Ended

    def _raise(self, name: str, text: str) -> NoReturn:
        self._raised_text = f"{name}: {text}"
        error: Exception = _Raised(self._raised_text)
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NEVER_RAISED):
            with contextlib.suppress(TypeError):  # A few built-in exceptions need more than a text.
                error = kind(text)
        self._raised = error
        raise error

    def _verdict(self, caught: BaseException | None, namespace: dict[str, Any]) -> tuple[str, str]:
        """Return the test's verdict and output. Notes taken on the way take precedence over the test's own result."""
        if self._unsendable:
            return "harness", self._unsendable
        if self._ended:
            return ENDED, ""
        if self._unreadable:
            return "crash", f"the program's answer cannot be read: {self._unreadable}"
        if caught is None:
            return "passed", ""
        if caught is self._raised:
            return "crash", self._raised_text
        if isinstance(caught, AssertionError):
            return "wrong", _value_text(namespace.get(SEEN, caught))
        return "wrong", f"{type(caught).__name__}: {_value_text(caught)}"


class RemoteFunction:
    """Function of the solution, called across processes."""

    def __init__(self, name: str, tester: Tester) -> None:
        self.name, self._tester = name, tester

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._tester.call(None, self.name, arguments, keywords)


class Remote(wire.Reference):
    """Object of a class of the solution, which stays there. No operator is forwarded: it equals only itself."""

    def __init__(self, index: int, tester: Tester) -> None:
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "_tester", tester)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._tester.call(self, wire.GET, (name,), {})

    def __setattr__(self, name: str, value: object) -> None:
        self._tester.call(self, wire.SET, (name, value), {})

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._tester.call(self, wire.CALL, arguments, keywords)


def _update(argument: Any, new: Any) -> None:
    """Copy the solution's changes to a list, dict, set or bytearray into the test's object."""
    if type(argument) is not type(new) or argument == new:
        return
    if isinstance(argument, list | bytearray):
        argument[:] = new
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(new)


def _value_text(value: object) -> str:
    try:
        text = str(value) if isinstance(value, BaseException) else repr(value)
    except Exception:
        # A class of the test may have any `__repr__`.
        text = f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."
