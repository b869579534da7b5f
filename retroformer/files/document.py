"""A report as data: chapters of text, tables, figures and folded files.

`report.json` holds it; `eval.report.markdown` and `eval.report.html` render it. Words are shown as they are, whoever
wrote them: a renderer escapes what its format would read as markup, so only a `StyledText` has a style.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from textwrap import shorten
from typing import ClassVar, Literal

from pydantic import Field

from retroformer.method.records import Record

DASH = "-"
"""Cell without a value."""
Points = tuple[tuple[float, float], ...]


class StyledText(Record):
    """Words with a style; a number is never broken into two lines."""

    text: str
    style: Literal["emphasis", "strong", "code", "number"]


Spans = tuple[str | StyledText, ...]
Words = str | Spans


def emphasis(text: str) -> StyledText:
    return StyledText(text=text, style="emphasis")


def strong(text: str) -> StyledText:
    return StyledText(text=text, style="strong")


def code(text: str) -> StyledText:
    return StyledText(text=text, style="code")


def unbroken(text: str) -> StyledText:
    """Return a number with its interval or name, such as `p = 0.0312`."""
    return StyledText(text=text, style="number")


def join_words(separator: str, words: Iterable[Words | StyledText]) -> Spans:
    """Join words by a text, as `str.join` does."""
    spans = list[str | StyledText]()
    for part in words:
        spans += [separator] * bool(spans)
        spans += [part] if isinstance(part, str | StyledText) else part
    return tuple(spans)


def plain(words: Words) -> str:
    """Return words without their styles, on one line."""
    spans = (words,) if isinstance(words, str) else words
    return " ".join("".join(span if isinstance(span, str) else span.text for span in spans).split())


class Cell(Record):
    """Cell of a table, or item of a list."""

    words: Words
    value: float | None = None
    """Number by which a reader sorts the column; None for text."""
    arms: tuple[str, ...] = ()
    """Arms or training seeds that the cell is about: one, or the two that a difference compares."""
    task: str = ""
    """Task whose story in the arm the cell names."""
    part: str = ""
    """Actor, repeat or domain whose report the cell names."""
    files: tuple[str, ...] = ()
    """Files that the numbers of the row come from, if it is about no arm."""


class Column(Record):
    """Column of a table. `table` takes it from the rows."""

    title: str
    trial: int | None = None
    """Trial by which its numbers are counted; None: the last, or all."""


Row = Mapping[str | Column, Words | int | Cell]
"""Cells of a row by their columns; a text or a count alone stands for a cell that has nothing else."""


class Table(Record):
    """Table with its caption. `table` makes one."""

    kind: ClassVar = "table"
    caption: Words
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    tasks: int | None = None
    """Number of tasks behind its rates; None: those of the report."""


class Paragraph(Record):
    """Paragraph of text."""

    kind: ClassVar = "paragraph"
    words: Words


class Listing(Record):
    """List of sentences."""

    kind: ClassVar = "list"
    items: tuple[Cell, ...]


class Folded(Record):
    """File that is shown when its title is clicked."""

    kind: ClassVar = "folded"
    title: str
    text: str
    language: str


class Series(Record):
    """A line of a chart."""

    name: str
    points: Points
    bounds: Points = ()
    """Lower and upper bound at each point."""
    members: tuple[Points, ...] = ()
    """Lines whose mean this one is, drawn thin."""
    note: str = ""
    """Text behind the name."""


class LineChart(Record):
    """Lines over one axis."""

    kind: ClassVar = "lines"
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    x_ticks: tuple[float, ...] = ()
    """Values with a tick on the x axis, where bounds are bars; empty: round numbers, and bounds are a band."""
    y_ticks: tuple[float, ...] = ()
    """The same for the y axis."""


class IntervalRow(Record):
    """A row of an interval chart."""

    name: str
    mean: float
    low: float
    high: float
    claimed: bool
    """True if a test agrees that the value is not 0."""


class IntervalChart(Record):
    """Values with their intervals, one below the other, around 0."""

    kind: ClassVar = "intervals"
    x_title: str
    rows: tuple[IntervalRow, ...]


class Figure(Record):
    """Chart with its caption."""

    kind: ClassVar = "figure"
    name: str
    """Name in the report's addresses, and of its file."""
    caption: str
    chart: LineChart | IntervalChart

    @property
    def file_name(self) -> str:
        return f"{self.name}.svg"


Part = Paragraph | Listing | Table | Folded | Figure


class Chapter(Record):
    """Chapter of a report; the first has no title."""

    title: str
    parts: tuple[Part, ...]
    source: str = ""
    """Function or class that computed its numbers, such as `eval.report.solved.by_trial`."""


class Report(Record):
    """A report about an evaluation."""

    title: str
    run: str
    """Name of the run, or of a domain of it, in the store."""
    place: str
    """What `retroformer view` opens to show the run: its folder, or EXPERIMENT.yaml if its store is elsewhere."""
    chapters: tuple[Chapter, ...]
    about: str = ""
    """What was evaluated, with which models, and when: a line below the title."""
    arms: dict[str, tuple[str, ...]] = Field(default={})
    """Names in the store, one for each training seed, by the name of an arm or seed that a cell is about."""

    @property
    def conclusion(self) -> tuple[Cell, ...]:
        """Sentences of the headline, the most important first."""
        lists = (part.items for part in self.chapters[0].parts if isinstance(part, Listing))
        return next(lists, ())

    @property
    def figures(self) -> tuple[Figure, ...]:
        return tuple(
            part for part in chain.from_iterable(one.parts for one in self.chapters) if isinstance(part, Figure)
        )


def table(rows: Sequence[Row], caption: Words, tasks: int | None = None) -> Table:
    """Return a table of at least one row; all rows have the same columns."""
    columns = tuple(column if isinstance(column, Column) else Column(title=column) for column in rows[0])
    cells = tuple(tuple(map(_cell, row.values())) for row in rows)
    return Table(caption=caption, columns=columns, rows=cells, tasks=tasks)


def _cell(content: Words | int | Cell) -> Cell:
    if isinstance(content, Cell):
        return content
    return number(content) if isinstance(content, int) else Cell(words=content)


def trial_column(trial: int, before: str = "trial") -> Column:
    return Column(title=f"{before} {trial}", trial=trial)


def chapter(title: str, *parts: Part | Words) -> Chapter:
    """Return a chapter; words are a paragraph."""
    shown = (Paragraph(words=part) if isinstance(part, str | tuple) else part for part in parts)
    return Chapter(title=title, parts=tuple(shown))


def arm_cell(name: str, words: Words = "") -> Cell:
    """Return the name of an arm or seed, or these words about it."""
    return Cell(words=words or name, arms=(name,))


def number(value: float, form: str = "", after: str = "") -> Cell:
    """Return a number in a format such as `.3f`, followed by a text."""
    return Cell(words=f"{value:{form}}{after}", value=float(value))


def share(count: int, total: int) -> Cell:
    """Return a share, such as `3 of 4 (75%)`; a dash if `total` is 0."""
    # A flag that was counted once prints as a number, too.
    return (
        Cell(words=f"{count:d} of {total:d} ({count / total:.0%})", value=count / total) if total else Cell(words=DASH)
    )


def quoted(text: str, most_characters: int) -> str:
    """Return the start of a text that a model wrote, on one line; `(nothing)` if it is blank."""
    return shorten(text, most_characters, placeholder=" ...") or "(nothing)"
