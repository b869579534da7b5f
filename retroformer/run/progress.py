"""Progress line of a stage: units done, and a short status text.

A terminal shows a live bar with the text under it. A log gets whole lines, every LOG_SECONDS and at the end.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from retroformer.run.store import AttemptRow

LOG_SECONDS = 30.0
"""Shortest time between two lines in a log."""


class ProgressLine:
    """Progress of one stage."""

    def __init__(self, title: str, total: int, done: int, console: Console, clock: Callable[[], float]) -> None:
        self.title, self.total, self.done, self.words = title, total, min(done, total), ""
        self._console, self._clock = console, clock
        self._began = self._written = clock()
        self.earlier = self.done
        """Units that an earlier command finished, which say nothing about the time to come."""

    def show(self, done: int, words: str) -> None:
        """Show the number of finished units and a status text."""
        self.done, self.words = min(done, self.total), words
        if not self._console.is_terminal and self._clock() - self._written >= LOG_SECONDS:
            self.write()

    def write(self) -> None:
        """Write a line of a log."""
        self._written = self._clock()
        times = ", ".join(filter(None, (_clock_time(self._written - self._began), self.left())))
        text = f"{self.title}  {self.done}/{self.total}  {times}  {self.words}".rstrip()
        # Written without Rich, which would break a long line at 80 columns.
        self._console.file.write(f"{text}\n")
        self._console.file.flush()

    def left(self) -> str:
        """Return the time that the units to come will take if they take as long as those so far."""
        taken = self.done - self.earlier
        if not 0 < taken < self.total - self.earlier:
            return ""
        return f"{_clock_time((self._clock() - self._began) / taken * (self.total - self.done))} left"


def _clock_time(seconds: float) -> str:
    """Return a duration in minutes and seconds, such as `12:05`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


class Tally:
    """Counts of outcomes, shown on a progress line."""

    def __init__(self, line: ProgressLine) -> None:
        self.counts: Counter[str] = Counter()
        self._line = line

    def count(self, what: str) -> None:
        """Count one more success, failure, invalid or reflection."""
        self.counts[what] += 1
        self._line.show(self._line.done, str(self))

    def done(self, attempts: Sequence[AttemptRow] = (), tasks: int = 1) -> None:
        """Count `tasks` more finished tasks or units; `attempts` are those that were already in the store."""
        self.counts.update(attempt.outcome for attempt in attempts)
        if attempts:
            self._line.earlier += tasks
        self._line.show(self._line.done + tasks, str(self))

    def __str__(self) -> str:
        names = ("success", "failure", "invalid", *sorted(self.counts.keys() - {"success", "failure", "invalid"}))
        return "  ".join(f"{name} {self.counts[name]}" for name in names)


@contextmanager
def tally(title: str, total: int, done: int = 0, *, console: Console | None = None) -> Iterator[Tally]:
    """Show a progress line that counts outcomes."""
    with line(title, total, done, console=console) as shown:
        yield Tally(shown)


@contextmanager
def line(
    title: str,
    total: int,
    done: int = 0,
    *,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[ProgressLine]:
    """Show a progress line on standard error, or on `console`; `clock` counts seconds."""
    screen = Console(stderr=True) if console is None else console
    shown = ProgressLine(title, total, done, screen, clock)
    if screen.is_terminal:
        with _live_bar(shown, screen):
            yield shown
        return
    try:
        yield shown
    finally:
        shown.write()


def _live_bar(line: ProgressLine, console: Console) -> Live:
    """Return a bar on one row, whose title wraps if the terminal is narrow, with the status text under it."""
    measures = (MofNCompleteColumn, TimeElapsedColumn, partial(TextColumn, "{task.fields[left]}"))
    bar = Progress(
        TextColumn("{task.description}", table_column=Column()),
        BarColumn(20, table_column=Column(no_wrap=True)),
        *(measure(table_column=Column(no_wrap=True)) for measure in measures),
    )
    task = bar.add_task(line.title, total=line.total, completed=line.done, left="")

    def draw() -> Group:
        bar.update(task, completed=line.done, left=line.left())
        return Group(bar.get_renderable(), *([Text(line.words)] if line.words else []))

    return Live(get_renderable=draw, console=console)
