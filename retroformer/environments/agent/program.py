"""Agent that is a program: it reads one JSON line per attempt and writes one."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

from retroformer.errors import EnvironmentFailure

_SHOWN = 300
"""Number of characters of an agent's own words that a cause shows."""
_KILL_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


def shortened(words: str) -> str:
    """Return the beginning of an agent's own words in one line."""
    return " ".join(words.split())[:_SHOWN]


class Program:
    """Program that is started with the first attempt, and again after it has ended."""

    def __init__(self, command: tuple[str, ...], timeout_seconds: float) -> None:
        self._command, self._timeout = command, timeout_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._received = b""

    def __call__(self, task: dict[str, Any], advice: str) -> Any:
        line = json.dumps({"task": task, "advice": advice}, ensure_ascii=False).encode() + b"\n"
        try:
            answer = self._ask(line)
        except EnvironmentFailure:
            self._stop()
            raise
        try:
            return json.loads(answer)
        except ValueError:
            self._stop()
            shown = shortened(answer.decode(errors="replace"))
            raise EnvironmentFailure(f"The agent wrote a line that is not JSON: {shown!r}.") from None

    def _ask(self, line: bytes) -> bytes:
        """Send a line and return the next one. Raises EnvironmentFailure."""
        end = time.monotonic() + self._timeout
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:
            raise self._ended(process) from None
        while b"\n" not in self._received:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise EnvironmentFailure(f"The agent gave no answer within {self._timeout:g} s.")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                raise self._ended(process)
            self._received += part
        answer, _, self._received = self._received.partition(b"\n")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        self._received = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # It is open as long as the program runs.
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                process_group=0,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        except OSError as error:
            raise EnvironmentFailure(f"The agent {self._command[0]!r} cannot be started: {error.strerror}.") from error
        return self._process

    def _ended(self, process: subprocess.Popen[bytes]) -> EnvironmentFailure:
        self._kill()
        status = process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        assert self._errors is not None
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip().splitlines()
        return EnvironmentFailure(f"The agent {how} before it answered: {shortened(words[-1] if words else 'no word')}")

    def _stop(self) -> None:
        if self._process is None:
            return
        self._kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # What was still to be written has no reader any more.
                    pipe.close()
        if self._errors is not None:
            self._errors.close()
        self._process = None

    def _kill(self) -> None:
        """Kill the program with everything that it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _die_with_parent() -> None:
    """Have the kernel kill this process when the process that started it is gone."""
    import ctypes

    ctypes.CDLL(None).prctl(_KILL_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
