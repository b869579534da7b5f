"""Supervision of processes: started together, restarted when one dies or stops responding, and stopped together.

Health is checked over HTTP, as clients would, since a process that lives but does not respond is useless. It is killed
and restarted: clients wait for seconds in the listening socket, which the supervisor holds, instead of losing a long
run. A process that keeps dying or keeps not responding ends all of them.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from retroformer.errors import ServiceError

from .private import send_private

QUICK_SECONDS = 60.0
"""Lifetime below which a death counts as quick."""
START_SECONDS = 3600.0
"""Time to the first response, after which a process is killed; the largest models load in minutes from a cold disk."""
QUICK_DEATHS = 5
"""Number of quick deaths in a row after which the supervisor gives up."""
POLL_SECONDS = 0.2
STOP_SECONDS = 5.0
PROBE_PAUSE_SECONDS = 2.0
SILENT_PROBES = 3
"""Number of failed health checks in a row after which a process counts as unresponsive. It is a count, not a time: a
supervisor that was suspended for an hour, with its machine or from a terminal, made no checks meanwhile."""

OWNER_ONLY = 0o600
"""Mode of log files, which may quote requests."""

logger = logging.getLogger(__name__)


class Service:
    """A process, run as `python -m serve.child ARGUMENTS --private=FD`, and its successors.

    Their output goes to `log`, which only the owner may read. They read `private` from the descriptor FD. `answers`
    is the health check.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        sockets: Sequence[int] = (),
        private: str = "",
        answers: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._log = log
        self._environment = dict(environment)
        self._sockets = tuple(sockets)
        self._private = private
        self._answers = answers
        self._answered: subprocess.Popen[bytes] | None = None
        self._silent: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started = self._restart_at = 0.0
        self._quick_deaths = 0
        # The log is emptied: the last line of an earlier run would be taken for one of this run.
        with open(log, "wb", opener=_for_owner) as output:
            os.fchmod(output.fileno(), OWNER_ONLY)  # An existing file may have another mode.

    def start(self) -> None:
        read_end, write_end = os.pipe()
        with open(self._log, "ab", opener=_for_owner) as output:
            # Its own session: an interrupt from the terminal reaches only the supervisor, which stops all in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.child", *self._arguments, f"--private={read_end}"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=(*self._sockets, read_end),
                start_new_session=True,
            )
        os.close(read_end)
        send_private(write_end, self._private)
        self._started = time.monotonic()

    def watch(self, ended: threading.Event, pause_seconds: float) -> None:
        """Check its health repeatedly, and note when it has stopped responding, until `ended` is set.

        A process that has never responded is starting, for which it has `START_SECONDS`.
        """
        unanswered = 0
        while not ended.wait(pause_seconds):
            process = self._process
            healthy = self._answers()
            if process is not self._process or process is None:
                continue  # It was replaced meanwhile: either process may have responded.
            if healthy:
                self._answered, unanswered = process, 0
            elif process is self._answered:
                unanswered += 1
                self._silent = process if unanswered >= SILENT_PROBES else None
            elif time.monotonic() - self._started > START_SECONDS:
                self._silent = process

    def has_answered(self) -> None:
        """Record that it has responded, even if `watch` has not checked it yet."""
        self._answered = self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def revive(self) -> None:
        """Restart it if it has died or is unresponsive: at once after a long life, ever later after quick deaths.

        Raises:
            ServiceError: it keeps dying.
        """
        if self._process is not None and self._process is self._silent:
            logger.warning("The %s does not answer any more: it is killed.", self.name)
            self._process.kill()
            self._process.wait()
        if self.alive:
            return
        now = time.monotonic()
        if self._process is not None:
            words = self.last_words()
            self._forget()
            self._quick_deaths = self._quick_deaths + 1 if now - self._started < QUICK_SECONDS else 0
            if self._quick_deaths >= QUICK_DEATHS:
                raise ServiceError(f"The {self.name} died {QUICK_DEATHS} times in a row: {words}")
            self._restart_at = now + (2.0**self._quick_deaths - 1) / 2
            logger.warning("The %s died and is started again: %s", self.name, words)
        if now >= self._restart_at:
            self.start()

    def last_words(self) -> str:
        """Return the last line of its log, the reason for its end, and the path of the log."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "it wrote nothing")
        return f"{last} ({self._ending()}; log: {self._log})"

    def _ending(self) -> str:
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return "has not ended"
        return f"exit code {code}" if code >= 0 else f"killed by {_signal_name(-code)}"

    def ask_to_stop(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def stop(self, deadline: float) -> None:
        """Wait until it has stopped; kill it at the deadline (on the monotonic clock)."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        """Drop a process that has ended, and close its input."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process = None


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, OWNER_ONLY)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # Real-time signals have no name.


def _wait_until(healthy: Callable[[], bool], services: Sequence[Service], stop: threading.Event) -> None:
    """Wait until all are `healthy` or `stop` is set; raise ServiceError if a service dies before."""
    while not stop.is_set() and not healthy():
        for service in services:
            if not service.alive:
                raise ServiceError(f"The {service.name} stopped while starting: {service.last_words()}")
        stop.wait(POLL_SECONDS)


def supervise(
    services: Sequence[Service],
    healthy: Callable[[], bool],
    ready: Callable[[], None],
    stop: threading.Event,
    probe_pause_seconds: float = PROBE_PAUSE_SECONDS,
) -> None:
    """Start all, call `ready` once they are healthy, and keep them running until `stop` is set.

    Raises:
        ServiceError: a service died before all were healthy, or keeps dying.
    """
    ended = threading.Event()
    try:
        for service in services:
            service.start()
            threading.Thread(target=service.watch, args=(ended, probe_pause_seconds), daemon=True).start()
        _wait_until(healthy, services, stop)
        if not stop.is_set():
            for service in services:
                service.has_answered()
            ready()
        while not stop.wait(POLL_SECONDS):
            for service in services:
                service.revive()
    finally:
        ended.set()
        deadline = time.monotonic() + STOP_SECONDS
        for service in services:
            service.ask_to_stop()
        for service in services:
            service.stop(deadline)
