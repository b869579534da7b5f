"""The ledger of the papers, docs/papers.yaml, and the page made of it: `python -m tests.support.papers` writes it."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from eval.report.markdown import table_lines

FOLDER = Path(__file__).parents[2] / "docs"
LEDGER, PAGE = FOLDER / "papers.yaml", FOLDER / "papers.md"
STATUSES = ("reproduced", "small scale", "runnable")
_COLLECT, _FILE = "collect: ", "file: "

_HEAD = """# The papers, item by item

Every numbered figure and table of the papers, and their settings and prompts, with the command that produces each
here. This page is made of
[`papers.yaml`](papers.yaml) by `python -m tests.support.papers`. A test runs every config below `configs/paper/` as
shipped, on three tasks, and looks for the sections named here.

- *reproduced*: the numbers agree with the paper's or with those of its code.
- *small scale*: measured by us with small models.
- *runnable*: runs; no number of the paper was produced, since that needs the paper's models or a large GPU.

The column *seen* says what we have looked at. A dash means the section alone: it appears when the config runs on three
tasks with a scripted model (`tests/test_papers.py`).

Departures are numbers of [this list](departures.md). Sections are headings of `runs/NAME/eval/report.md`.
"""
_COMMANDS = """## Commands

`CONFIG` stands for the entry in the column *config*, `FOLDER` for the [data](environments.md).
"""
_BEYOND = """## Beyond the papers

An arm of kind `retrieved` (`eval.arms.NAME.kind: retrieved`) gives a failure the advice that was written for other
tasks during collection. It chooses by similarity and by an upper confidence bound of the gain that the advice brought.
With `learns: true`, gains in earlier tasks of the evaluation count, too.
"""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Paper(_Part):
    """A paper, with the highest number of its figures and tables."""

    title: str
    figures: Annotated[int, Field(ge=0)]
    tables: Annotated[int, Field(ge=0)]


class Row(_Part):
    """A figure, table, setting or prompt of a paper."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    paper: str
    where: str
    shows: Annotated[str, Field(pattern=r"\.$")]
    config: str = ""
    """File below configs/, then overrides; empty if a file shows the item."""
    command: str = ""
    section: str
    departures: tuple[int | str, ...]
    status: Literal["reproduced", "small scale", "runnable"]
    seen: str = ""
    """Figures that were measured, in a sentence; empty if the item was seen to run and no more."""

    @model_validator(mode="after")
    def _measured_rows_say_what_was_seen(self) -> Self:
        if self.status != "runnable" and not self.seen:
            raise ValueError(f"{self.id} is {self.status}: say in `seen` which figures were measured")
        return self

    @property
    def path(self) -> str:
        """Path of the config below the repository, or nothing."""
        return f"configs/{self.config.split()[0]}" if self.config else ""

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(self.config.split()[1:])

    @property
    def file(self) -> str:
        """Path of the file that shows the item, or nothing."""
        return self.section.removeprefix(_FILE) if self.section.startswith(_FILE) else ""

    @property
    def summary_line(self) -> str:
        """First word of the line of collect's summary that shows the item, or nothing."""
        return self.section.removeprefix(_COLLECT) if self.section.startswith(_COLLECT) else ""

    @property
    def heading(self) -> str:
        """Heading of the report that shows the item, or nothing."""
        return "" if self.file or self.summary_line else self.section


class Ledger(_Part):
    """The whole ledger."""

    commands: dict[str, str]
    papers: dict[str, Paper]
    rows: tuple[Row, ...]


@cache
def read_ledger() -> Ledger:
    """Read docs/papers.yaml, once in a process. Raises pydantic.ValidationError."""
    return Ledger.model_validate(yaml.safe_load(LEDGER.read_text()))


def render(ledger: Ledger) -> str:
    """Return the page in Markdown."""
    return "\n\n".join((_HEAD.strip(), *_sections(ledger), _BEYOND.strip())) + "\n"


def _sections(ledger: Ledger) -> Iterator[str]:
    yield _counts(ledger.rows)
    yield _COMMANDS.strip()
    yield from _commands(ledger.commands)
    for name, paper in ledger.papers.items():
        rows = [_cells(row) for row in ledger.rows if row.paper == name]
        yield f"## {paper.title}\n\n{table_lines(_HEADER, rows)}"


_HEADER = ("where", "what it shows", "config", "command", "shown in", "departures", "status", "seen")


def _cells(row: Row) -> list[str]:
    shown = row.section
    if row.file:
        shown = f"[`{Path(row.file).name}`](../{row.file})"
    elif row.summary_line:
        shown = f"line `{row.summary_line}` of the summary of `retroformer collect`"
    departures = [f"{item}" for item in row.departures if isinstance(item, int)]
    sentences = [item for item in row.departures if isinstance(item, str)]
    listed = " ".join((", ".join(departures) + ("." if departures and sentences else ""), *sentences)).strip()
    config = f"[`{row.config}`](../{row.path})" if row.config else ""
    return [row.where, row.shows, config, row.command, shown, listed, row.status, row.seen or "-"]


def _commands(commands: dict[str, str]) -> Iterator[str]:
    for name, command in commands.items():
        lines = "\n".join(f"    {part}" for part in command.split(" && "))
        yield f"*{name}*:\n\n{lines}"


def _counts(rows: Sequence[Row]) -> str:
    counts = Counter(row.status for row in rows)
    return f"{len(rows)} rows: {', '.join(f'{counts[status]} {status}' for status in STATUSES)}."


def numbered_items(rows: Iterable[Row]) -> set[str]:
    """Return the figures and tables that rows name, such as `Fig. 3` for `Fig. 3a`; `Figs. 2 to 4` names three."""
    places = [row.where for row in rows]
    named = {f"{kind} {number}" for place in places for kind, number in re.findall(r"\b(Fig\.|Table) ([0-9]+)", place)}
    ranges = [found for place in places for found in re.findall(r"\bFigs\. ([0-9]+) to ([0-9]+)", place)]
    return named | {f"Fig. {number}" for first, last in ranges for number in range(int(first), int(last) + 1)}


if __name__ == "__main__":
    PAGE.write_text(render(read_ledger()))
