"""Measurements inside one process of `benchmarks/training.py`: CPU time of updates, and resident memory."""

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformers import TrainerCallback


class Ready(NamedTuple):
    language_model: Any
    """The model that samples responses."""
    train: Callable[["Laps"], list[float]]
    """Takes all updates, and returns their losses, or [] if they depend on sampled responses."""
    seconds_before: float = 0.0
    """CPU seconds for an update that were spent before training: DPO's reading by the reference."""


class Lap(NamedTuple):
    all: float
    """Without the check of the first batch."""
    sampling: float
    check: float


class Laps:
    def __init__(self) -> None:
        self.laps: list[Lap] = []
        self.begun = False

    def begin(self) -> None:
        """Start the first update; later ones start where the update before ends."""
        self._start, self._parts = time.process_time(), {"sampling": 0.0, "check": 0.0}
        self.begun = True

    def end(self) -> None:
        seconds = time.process_time() - self._start
        sampling, check = self._parts["sampling"], self._parts["check"]
        self.laps.append(Lap(seconds - check, sampling, check))
        self.begin()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with its CPU time counted as a part of the update."""

        def counted(*arguments: Any, **named: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self._parts[part] += time.process_time() - start

        return counted


class StepLaps(TrainerCallback):  # type: ignore[misc]
    def __init__(self, laps: Laps) -> None:
        self._laps = laps

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        # The data loader reads ahead between updates, which belongs to them.
        if not self._laps.begun:
            self._laps.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._laps.end()


class Resident(NamedTuple):
    now: int
    peak: int


def resident() -> Resident:
    """Return resident bytes from /proc: `ru_maxrss` starts at the value of the parent process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return Resident(*(int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")))


def reset_peak() -> None:
    """Free what the allocator keeps, and let the peak of resident memory start from what is left."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
