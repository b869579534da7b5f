"""Processes that are started together, restarted when one dies or falls silent, and stopped together.

Whether one works is asked through HTTP, as its clients would: a process that lives and does not answer is no use to
anyone. It is killed and started again, since its clients are better off waiting seconds than losing a long run: they
wait in the listening socket, which the supervisor holds. What dies or falls silent again and again ends all.
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
from serve.private import send_private

QUICK_SECONDS = 60.0
"""A process that lived shorter than this died quickly."""
START_SECONDS = 3600.0
"""A process that has not answered by then never will; the largest models take minutes from a cold disk."""
QUICK_DEATHS = 5
"""As many quick deaths in a row, and the supervisor gives up."""
POLL_SECONDS = 0.2
STOP_SECONDS = 5.0
PROBE_PAUSE_SECONDS = 2.0
SILENT_PROBES = 3
"""As many questions in a row without an answer, and a process is taken for silent. Counted, and not timed: a supervisor
that was stopped for an hour, with its machine or from a terminal, has asked no question meanwhile."""

OWNER_ONLY = 0o600
"""Mode of log files: they may quote what clients have sent."""

logger = logging.getLogger(__name__)


class Service:
    """One process, run as `python -m serve.child ARGUMENTS --private=FD`.

    Its output, and that of its successors, goes to `log`, which nobody else may read; `private` it reads from the
    descriptor FD. `answers` asks whether it works.
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
        # An earlier run's last words would be taken for this one's.
        with open(log, "wb", opener=_for_owner) as output:
            os.fchmod(output.fileno(), OWNER_ONLY)  # The file may be one of an earlier version's.

    def start(self) -> None:
        read_end, write_end = os.pipe()
        with open(self._log, "ab", opener=_for_owner) as output:
            # Its own session: an interrupt from the terminal reaches the supervisor alone, which stops all in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "serve.child", *self._arguments, f"--private={read_end}"],
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
        """Ask again and again whether it works, and note when it has stopped to answer, until all has `ended`.

        A process that has not answered yet is being started, for which it has `START_SECONDS`.
        """
        unanswered = 0
        while not ended.wait(pause_seconds):
            process = self._process
            works = self._answers()
            if process is not self._process or process is None:
                continue  # Nobody knows which of them was asked.
            if works:
                self._answered, unanswered = process, 0
            elif process is self._answered:
                unanswered += 1
                self._silent = process if unanswered >= SILENT_PROBES else None
            elif time.monotonic() - self._started > START_SECONDS:
                self._silent = process

    def has_answered(self) -> None:
        """It was seen at work, whether or not `watch` has asked since."""
        self._answered = self._process

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def revive(self) -> None:
        """Start it again if it has died or is silent: at once after a long life, later and later after quick deaths.

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
        """The end of its log, how it ended, and where the rest is."""
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
        """Wait until it has stopped, and kill it at the deadline (on the monotonic clock)."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        """Let go of a process that has ended, and of its input, whose closing would have ended it."""
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
        return f"signal {number}"  # Those for real time have no name.


def _wait_until(healthy: Callable[[], bool], services: Sequence[Service], stop: threading.Event) -> None:
    """Raise ServiceError where one of them dies before that."""
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
        ServiceError: one of them died before all were healthy, or keeps dying.
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
