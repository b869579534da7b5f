"""The line that says how far a stage is: tasks done, and counts of success, failure and invalid."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Tally:
    """Counts what happens and shows it."""

    def __init__(self, progress: Progress, title: str, total: int) -> None:
        self.counts: Counter[str] = Counter()
        self._progress = progress
        self._bar = progress.add_task(title, total=total, counts="")

    def told(self, what: str) -> None:
        """One more success, failure, invalid or reflection."""
        self.counts[what] += 1
        self._progress.update(self._bar, counts=str(self))

    def advance(self) -> None:
        """One task is done."""
        self._progress.advance(self._bar)

    def __str__(self) -> str:
        names = ("success", "failure", "invalid", *sorted(self.counts.keys() - {"success", "failure", "invalid"}))
        return "  ".join(f"{name} {self.counts[name]}" for name in names)


@contextmanager
def tally(title: str, total: int) -> Iterator[Tally]:
    """A progress line on standard error; silent where that is no terminal, but for its last state."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[counts]}"), console=console) as progress:
        yield Tally(progress, title, total)
