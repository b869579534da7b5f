"""Supervision of processes: started together, restarted when one dies or stops responding, and stopped together."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retroformer.errors import ServiceError

HEALTH = "/health"
"""Path of health checks."""
QUICK_SECONDS = 60.0
"""Lifetime below which a death counts as quick."""
QUICK_DEATHS = 5
"""Number of quick deaths in a row after which the supervisor gives up."""
POLL_SECONDS = 0.2
STOP_SECONDS = 5.0
PROBE_PAUSE_SECONDS = 2.0
PROBE_SECONDS = 10.0
"""Time for a response: a working server responds in milliseconds, on a crowded machine in seconds."""
START_PROBE_SECONDS = 2.0
"""Time for a response at the start, so that a process that has died is soon noticed."""
SILENT_PROBES = 3
"""Number of failed health checks in a row after which a process counts as unresponsive. It is a count, not a time: a
supervisor that was suspended made no checks meanwhile."""

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)  # Its fields hold secrets.
class Service:
    """A process, run as `python -m MODULE ARGUMENTS`, and its successors."""

    name: str
    command: Sequence[str]
    log: Path
    """File of their output, which only the owner may read: it may quote requests."""
    environment: Mapping[str, str]
    answers: Callable[[float], bool]
    """Health check, which takes no longer than the given number of seconds."""
    first_line: str = ""
    """First line of their input, for secrets: anyone can read a command line. The input stays open afterwards."""
    sockets: Sequence[int] = ()
    """Sockets that they inherit."""
    _process: subprocess.Popen[bytes] | None = None
    _started: float = 0.0
    _restart_at: float = 0.0
    _next_probe: float = 0.0
    _has_answered: bool = False
    _silent_probes: int = 0
    _quick_deaths: int = 0

    def __post_init__(self) -> None:
        # A new file: the last line of an earlier run would be taken for one of this run, and its mode may be another.
        self.log.unlink(missing_ok=True)
        self.log.touch(0o600)

    def start(self) -> None:
        with self.log.open("ab") as output:
            # Its own session: an interrupt from the terminal reaches only the supervisor, which stops all in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                pass_fds=self.sockets,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # It may have died already.
            self._process.stdin.write(self.first_line.encode() + b"\n")
            self._process.stdin.flush()
        self._started = time.monotonic()
        self._has_answered, self._silent_probes = False, 0

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_ready(self) -> bool:
        """Return True if it answers. Raises ServiceError if it has died."""
        if not self.alive:
            raise ServiceError(f"The {self.name} stopped while starting: {self._reason()}")
        self._has_answered = self.answers(START_PROBE_SECONDS)
        return self._has_answered

    def restart_if_needed(self) -> None:
        """Restart it if it has died or is unresponsive: at once after a long life, ever later after quick deaths.

        Raises ServiceError if it keeps dying.
        """
        if self._process is not None and self.alive and self._is_unresponsive():
            logger.warning("The %s does not answer any more: it is killed.", self.name)
            self._signal(signal.SIGKILL)
            self._process.wait()
        now = time.monotonic()
        if self._process is not None and not self.alive:
            reason = self._reason()
            self.stop(now)
            self._quick_deaths = self._quick_deaths + 1 if now - self._started < QUICK_SECONDS else 0
            if self._quick_deaths >= QUICK_DEATHS:
                raise ServiceError(f"The {self.name} died {QUICK_DEATHS} times in a row: {reason}")
            self._restart_at = now + (2.0**self._quick_deaths - 1) / 2
            logger.warning("The %s died and is started again: %s", self.name, reason)
        if self._process is None and now >= self._restart_at:
            self.start()

    def _is_unresponsive(self) -> bool:
        """Check its health if it is time; a process that has never answered is still starting."""
        if time.monotonic() < self._next_probe:
            return False
        if self.answers(PROBE_SECONDS):
            self._has_answered, self._silent_probes = True, 0
        else:
            self._silent_probes += self._has_answered
        self._next_probe = time.monotonic() + PROBE_PAUSE_SECONDS
        return self._silent_probes >= SILENT_PROBES

    def _reason(self) -> str:
        """Return the last line of its log, how it ended, and the path of the log."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "it wrote nothing")
        code = (self._process.poll() if self._process is not None else None) or 0
        names = {-number.value: f"killed by {number.name}" for number in signal.Signals}
        return f"{last} ({names.get(code, f'exit code {code}')}; log: {self.log})"

    def ask_to_stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to its process and to all that it has started, as vLLM starts several."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self, deadline: float) -> None:
        """Wait until it has stopped; kill it at the deadline (on the monotonic clock)."""
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        self._signal(signal.SIGKILL)  # Also what it may have left behind.
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process = None


def supervise(services: Sequence[Service], ready: Callable[[], None], stop: threading.Event) -> None:
    """Start all, call `ready` once all answer, and keep them running until `stop` is set.

    Raises ServiceError if a service died before all answered, or keeps dying.
    """
    try:
        for service in services:
            service.start()
        while not stop.is_set():
            unready = [service for service in services if not service.is_ready()]
            if not unready:
                ready()
                break
            stop.wait(POLL_SECONDS)
        while not stop.wait(POLL_SECONDS):
            for service in services:
                service.restart_if_needed()
    finally:
        deadline = time.monotonic() + STOP_SECONDS
        for service in services:
            service.ask_to_stop()
        for service in services:
            service.stop(deadline)


def read_first_line() -> str:
    """Return the first line of standard input; exit this process when the input closes, as its supervisor has died."""
    line = sys.stdin.buffer.readline().decode()
    when_input_closes(lambda: os._exit(1))
    return line


def when_input_closes(call: Callable[[], object]) -> None:
    """Call from another thread once standard input ends, as when the parent process dies."""

    def wait() -> None:
        while os.read(0, 4096):
            continue
        call()

    threading.Thread(target=wait, name="watch standard input", daemon=True).start()


def main(command: Sequence[str]) -> None:
    """Run a program that does not watch its input, in a session of its own, and end both when this input closes."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # The program gets it, too, and this process ends after it.
    sys.stdin.buffer.readline()
    when_input_closes(lambda: os.killpg(0, signal.SIGKILL))
    raise SystemExit(subprocess.run(command, stdin=subprocess.DEVNULL).returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
