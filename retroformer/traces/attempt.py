"""One attempt as another program recorded it, before attempts of one task are grouped into cases."""

from collections.abc import Callable, Iterator
from pathlib import Path

from retroformer.cases.case import CaseAttempt, CaseTask
from retroformer.records import KeyNumber, Record


class TracedAttempt(Record):
    """An attempt, its place among those at its task, and the advice that it read."""

    task: CaseTask
    attempt: CaseAttempt
    trial: KeyNumber | None = None
    """Number of the attempt among those at its task, if the program counts them; ranks before the time."""
    started_ns: int = 0
    """Start of the attempt in nanoseconds since 1970: attempts at a task are in this order."""
    advice: tuple[str, ...] = ()
    """All advice that the attempt read, oldest first; advice that an earlier attempt read may be among it."""
    advice_model: str = ""
    """Model that wrote the advice, if it is recorded."""
    source: str
    """Where the attempt was read, for errors, such as `Line 3 of traces.jsonl`."""


class Skipped(Record):
    """An entry that is no attempt to learn from, such as one without a score; it is counted."""

    reason: str
    """Plural noun phrase, such as `traces without a score`."""


ReadTraces = Callable[[Path, str | None], Iterator[TracedAttempt | Skipped]]
"""Reader of a format: gets a file or folder and the name of the score to use (None: the only one), yields attempts.

It raises MissingInput with file, line and field for whatever cannot be read.
"""
