"""Ways to reach an agent: a Python function, a program that reads and writes JSON lines, or an HTTP address.

Each takes a task and the advice and returns what the agent returned, unchecked. An agent that crashes, hangs or answers
garbage raises EnvironmentFailure, with the cause. A program runs under a guard, which ends it and everything that it
started.
"""

import asyncio
import contextlib
import copy
import inspect
import json
import os
import secrets
import select
import signal
import subprocess
import threading
import time
import traceback
import weakref
from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Any

from retroformer.errors import EnvironmentFailure, describe
from retroformer.files.bounded import MIB, size
from retroformer.files.program_guard import ErrorOutput, guard_command
from retroformer.files.text import json_value

_TRACEBACK_CHARACTERS = 2000
"""Characters at the end of a traceback of the user's own code that are kept."""
_SHOWN = 300
"""Number of characters of an agent's output that an error message shows."""
_KILLING_SECONDS = 10.0
"""Time that the guard of a program has to kill everything."""
_PART_BYTES = 1 << 16
LARGEST_ANSWER_BYTES = 64 * MIB
"""Largest answer of an agent; a longer one is refused, so that it cannot fill the memory."""
_LOOK_SECONDS = 1.0
"""Time between two looks at the size of a program's standard error, since a program may run for days."""


def shortened(words: str) -> str:
    return " ".join(words.split())[:_SHOWN]


Caller = Callable[[dict[str, Any], str], Any]
"""Agent that plays one attempt after another: it returns what the agent returned. Raises EnvironmentFailure."""


class Function:
    def __init__(self, function: Callable[..., Any], timeout_seconds: float) -> None:
        self._function, self._timeout = function, timeout_seconds
        self._loop = asyncio.Runner()
        """One event loop for all attempts: a client that the agent keeps is bound to it."""

    def __call__(self, task: dict[str, Any], advice: str) -> Any:
        try:
            # A copy: an attempt may change its task.
            with _alarm(self._timeout):
                result = self._function(copy.deepcopy(task), advice=advice)
            return self._loop.run(_await(result, self._timeout)) if inspect.isawaitable(result) else result
        except EnvironmentFailure:
            raise
        except _OutOfTimeError:
            raise EnvironmentFailure(f"The agent gave no answer within {self._timeout:g} s.") from None
        except BaseException as error:  # Foreign code: whatever it raises, SystemExit too, belongs to this attempt.
            raise failure_of("The agent", error) from error


class _OutOfTimeError(BaseException):
    """End of an attempt that takes too long. It is no Exception, which an agent that tries again would catch."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise _OutOfTimeError in this block after that time; code that never returns to Python runs on."""

    def ring(*_: object) -> None:
        raise _OutOfTimeError

    if threading.current_thread() is not threading.main_thread():
        yield  # Other threads get no signals.
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def _await(result: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds) as limit:
        try:
            return await result
        except asyncio.CancelledError:
            if limit.expired():
                raise _OutOfTimeError from None
            raise


def failure_of(what: str, error: BaseException) -> EnvironmentFailure:
    """Return the failure of an attempt in which the user's own code raised an error, with its traceback."""
    first = error.__traceback__ and error.__traceback__.tb_next
    lines = "".join(traceback.format_exception(type(error), error, first))[-_TRACEBACK_CHARACTERS:]
    return EnvironmentFailure(f"{what} raised {shortened(describe(error))}.\n{lines.strip()}")


def _value(answer: bytes) -> Any:
    try:
        return json_value(answer)
    except (ValueError, RecursionError) as error:
        shown = shortened(answer.decode(errors="replace"))
        raise EnvironmentFailure(f"The agent answered something that is not JSON: {shown!r} ({error}).") from None


class HttpAgent:
    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._url, self._timeout = url, timeout_seconds

    def __call__(self, task: dict[str, Any], advice: str) -> Any:
        from retroformer.endpoint.http_client import NoAnswer, fetch_now

        body = {"task": task, "advice": advice}
        try:
            answer = fetch_now("POST", self._url, self._timeout, json=body, largest=LARGEST_ANSWER_BYTES)
        except NoAnswer as error:
            raise EnvironmentFailure(f"The agent {error}.") from error
        if answer.status != HTTPStatus.OK:
            raise EnvironmentFailure(f"The agent answered {answer.status}: {shortened(answer.text)}")
        return _value(answer.content)


class Program:
    """Program that is started with the first attempt, and again after it has ended."""

    def __init__(self, command: tuple[str, ...], timeout_seconds: float) -> None:
        self._command, self._timeout = command, timeout_seconds
        self._running: _Running | None = None
        self._earlier = set[str]()
        """Names of the attempts so far."""

    def __call__(self, task: dict[str, Any], advice: str) -> Any:
        """Send one attempt to the program and return its answer. Raises EnvironmentFailure."""
        name = secrets.token_hex(8)
        request = {"task": task, "advice": advice, "attempt": name}
        line = json.dumps(request, ensure_ascii=False).encode(errors="replace") + b"\n"
        end = time.monotonic() + self._timeout
        try:
            value = _value(self._answer(line, end))
            # A program has its own fields, too, but only an answer to an earlier attempt has its name.
            if isinstance(value, dict) and str(value.get("attempt")) in self._earlier:
                raise EnvironmentFailure("The agent gave the answer to an earlier attempt, too late.")
            return value
        except TimeoutError:
            self._stop()
            raise EnvironmentFailure(f"The agent gave no answer within {self._timeout:g} s.") from None
        except EnvironmentFailure:
            self._stop()
            raise
        finally:
            self._earlier.add(name)

    def _answer(self, line: bytes, end: float) -> bytes:
        """Return the answer to a line. Raises EnvironmentFailure, TimeoutError."""
        while True:
            is_new = self._running is None
            running = self._running = self._running or _Running(self._command)
            if not is_new and (extra := running.unread()):
                raise EnvironmentFailure(f"The agent wrote more than one line for an attempt: {shortened(extra)!r}.")
            try:
                return running.ask(line, end)
            except EOFError:
                if not running.answered:
                    raise running.ended() from None
            # A program may end after an attempt: this one gets a new process.
            self._stop()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None


class _Running:
    def __init__(self, command: tuple[str, ...]) -> None:
        """Start it. Raises EnvironmentFailure."""
        self.answered = False
        """True if it has answered an attempt."""
        self._received = bytearray()
        self._errors = ErrorOutput()
        try:
            self._process = subprocess.Popen(
                guard_command(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors.fileno(),
                bufsize=0,
                process_group=0,
            )
        except OSError as error:
            self._errors.close()
            raise EnvironmentFailure(f"The agent {command[0]!r} cannot be started: {error.strerror}.") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        self._stopping = weakref.finalize(self, _end, self._process, self._errors)

    def ask(self, line: bytes, end: float) -> bytes:
        """Send a line and return the next one. Raises EOFError, TimeoutError, EnvironmentFailure."""
        answer = bytearray()
        # A blank line is no answer: many programs end their lines twice.
        while not answer.strip():
            line = self._receive(line, end)
            answer, _, rest = self._received.partition(b"\n")
            self._received = rest.lstrip()
        self.answered = True
        return bytes(answer)

    def _receive(self, line: bytes, end: float) -> bytes:
        """Send the line and receive until there is a whole one; return what is not sent yet. Raises as `ask` does."""
        part = bytes(self._received)
        while b"\n" not in part:
            if len(self._received) > LARGEST_ANSWER_BYTES:
                raise EnvironmentFailure(f"The agent wrote a line longer than {size(LARGEST_ANSWER_BYTES)}, the limit.")
            self._errors.trim()
            left = end - time.monotonic()
            # A program that writes without a pause is always ready.
            if left <= 0:
                raise TimeoutError
            ready, writable, _ = select.select(
                [self._stdout], [self._stdin] if line else [], [], min(left, _LOOK_SECONDS)
            )
            if writable:
                line = line[self._write(line) :]
            if ready:
                part = os.read(self._stdout, _PART_BYTES)
                if not part and not self._received.strip():
                    raise EOFError
                # The last line may lack its end.
                part = part or b"\n"
                self._received += part
        return line

    def unread(self) -> str:
        if select.select([self._stdout], [], [], 0)[0]:
            self._received += os.read(self._stdout, _PART_BYTES)
        return self._received.decode(errors="replace").strip()

    def ended(self) -> EnvironmentFailure:
        """Return the error that says how the process ended, with the last line of its errors."""
        status = _kill(self._process)
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        last = shortened(self._errors.last_line() or "no word")
        return EnvironmentFailure(f"The agent {how} before it answered: {last}")

    def stop(self) -> None:
        self._stopping()

    def _write(self, line: bytes) -> int:
        """Write as much as the process takes now. Raises EOFError if it has closed its standard input."""
        try:
            return os.write(self._stdin, line[:_PART_BYTES])
        except BlockingIOError:
            return 0
        except OSError:
            raise EOFError from None


def _end(process: subprocess.Popen[bytes], errors: ErrorOutput) -> None:
    _kill(process)
    for pipe in (process.stdin, process.stdout, errors):
        if pipe is not None:
            with contextlib.suppress(OSError):  # What was still to be written has no reader any more.
                pipe.close()


def _kill(guard: subprocess.Popen[bytes]) -> int:
    """Have the guard kill the program with everything that it started; return how the program ended."""
    guard.terminate()
    try:
        return guard.wait(_KILLING_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(guard.pid, signal.SIGKILL)
        return guard.wait()
