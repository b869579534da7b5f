"""Progress line of a stage: units done, and a short status text.

A terminal shows a live bar with the text under it. A log gets whole lines, every LOG_SECONDS and at the end.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from retroformer.run.store import AttemptRow

LOG_SECONDS = 30.0
"""Shortest time between two lines in a log."""


class ProgressLine:
    """Progress of one stage."""

    def __init__(self, title: str, total: int, done: int, changed: Callable[["ProgressLine"], None]) -> None:
        self.title, self.total, self.done, self.words = title, total, min(done, total), ""
        self._changed = changed

    def show(self, done: int, words: str) -> None:
        """Show the number of finished units and a status text."""
        self.done, self.words = min(done, self.total), words
        self._changed(self)


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
    if screen.is_terminal:
        with _Bar(screen, title, total, done) as bar:
            yield ProgressLine(title, total, done, bar.draw)
        return
    log = _Log(screen, clock)
    shown = ProgressLine(title, total, done, log.write_now_and_then)
    try:
        yield shown
    finally:
        log.write(shown)


class _Bar(Progress):
    """Live bar on one row, whose title wraps if the terminal is narrow, with the status text under it."""

    def __init__(self, console: Console, title: str, total: int, done: int) -> None:
        self._words = ""
        measures = (MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn)
        super().__init__(
            TextColumn("{task.description}", table_column=Column()),
            BarColumn(20, table_column=Column(no_wrap=True)),
            *(measure(table_column=Column(no_wrap=True)) for measure in measures),
            console=console,
        )
        self._task = self.add_task(title, total=total, completed=done)

    def draw(self, line: ProgressLine) -> None:
        self._words = line.words
        self.update(self._task, completed=line.done)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self._words:
            yield Text(self._words)


class _Log:
    """Progress lines in a file or pipe."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._began = self._written = clock()

    def write_now_and_then(self, line: ProgressLine) -> None:
        if self._clock() - self._written >= LOG_SECONDS:
            self.write(line)

    def write(self, line: ProgressLine) -> None:
        self._written = self._clock()
        minutes, seconds = divmod(int(self._written - self._began), 60)
        text = f"{line.title}  {line.done}/{line.total}  {minutes}:{seconds:02}  {line.words}".rstrip()
        # Written without Rich, which would break a long line at 80 columns.
        self._console.file.write(f"{text}\n")
        self._console.file.flush()
