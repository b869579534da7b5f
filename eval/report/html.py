"""A report as HTML: in a page of the viewer, or as one file that opens without a network."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from retroformer.files.document import DASH, Cell, Figure, Part, Report, StyledText, Table, Words, plain
from retroformer.files.text import visible

from ..view import charts
from ..view.rendering import inline, link_to, templates

_ELEMENTS = {
    "emphasis": Markup("<em>{}</em>"),
    "strong": Markup("<strong>{}</strong>"),
    "code": Markup("<code>{}</code>"),
    "number": Markup('<span class="interval">{}</span>'),
}
_SENTENCE_CHARACTERS = 60
"""Characters beyond which a text is a sentence."""

Address = Callable[[Cell], str]
"""Function that returns the address of what stands behind a cell; empty if there is none."""


def address_in_folder(cell: Cell) -> str:
    """Return the address in a file without the site: only of the reports about actors, repeats or domains."""
    return f"{quote(cell.part)}/report.html" if cell.part else ""


class PlacedPart(NamedTuple):
    part: Part
    address: str = ""
    number: int = 0


class PlacedChapter(NamedTuple):
    """Chapter with the address of its heading; neighbouring figures stand in one row."""

    address: str
    title: str
    rows: Sequence[Sequence[PlacedPart]]


class ReportPage:
    """Report as the templates show it: each heading, table and figure has an address of its own."""

    def __init__(self, report: Report, address: Address = address_in_folder) -> None:
        self.report, self._address = report, address
        self._addresses = Counter[str](("main", "progress", "contents"))
        self._numbers = Counter[str]()
        self.sections = list(self._sections())

    def _sections(self) -> Iterator[PlacedChapter]:
        for chapter in self.report.chapters:
            address = self._new(_slug(chapter.title)) if chapter.title else ""
            blocks = [self._block(part, address) for part in chapter.parts]
            rows = [list(row) for _, row in groupby(blocks, lambda block: block.part.kind == "figure")]
            yield PlacedChapter(address, chapter.title, rows)

    def _block(self, part: Part, within: str) -> PlacedPart:
        if not isinstance(part, Table | Figure):
            return PlacedPart(part)
        self._numbers[part.kind] += 1
        address = f"table-{within}" if isinstance(part, Table) else f"figure-{part.name}"
        return PlacedPart(part, self._new(address), self._numbers[part.kind])

    def _new(self, address: str) -> str:
        self._addresses[address] += 1
        count = self._addresses[address]
        return f"{address}-{count}" if count > 1 else address

    def words(self, words: Words) -> Markup:
        return Markup("").join(map(_span, (words,) if isinstance(words, str) else words))

    def cell(self, cell: Cell) -> Markup:
        """Return a cell as HTML, with a link to what is behind it."""
        return link_to(self.words(cell.words), self._address(cell))

    def is_seed(self, cell: Cell) -> bool:
        """True for the name of a training seed, whose row stands below that of its arm."""
        name = cell.arms[0] if len(cell.arms) == 1 and not cell.task else ""
        pooled = self.report.arms.get(name.rpartition("/")[0], ())
        return len(pooled) > 1 and set(self.report.arms.get(name, ())) <= set(pooled)

    def kinds(self, table: Table) -> list[str]:
        """Return the class of each column: `n` if it holds only numbers, `long` if sentences, else empty."""
        return [_kind(cells) for cells in zip(*table.rows, strict=True)] or [""] * len(table.columns)

    def drawing(self, figure: Figure) -> Markup:
        """Return a figure with its legend; the names lead to the stories of the arms."""
        links = {name: self._address(Cell(words=name, arms=(name,))) for name in self.report.arms}
        return charts.svg(figure.chart, figure.caption, links) + charts.legend(figure.chart, links)


def to_html(report: Report) -> str:
    """Return the file. Its content security policy runs this style and this script, and loads nothing."""
    shown = {"title": report.title, "page": ReportPage(report), "here": ""}
    return templates().get_template("report_file.html").render(shown, inline=inline("sort.js"))


def _span(span: str | StyledText) -> Markup:
    element = Markup("{}") if isinstance(span, str) else _ELEMENTS[span.style]
    return element.format(visible(span if isinstance(span, str) else span.text))


def _slug(title: str) -> str:
    """Return the words of a title without its numbers, which differ from run to run."""
    return "-".join(re.findall("[a-z]+", title.lower())) or "section"


def _kind(cells: Sequence[Cell]) -> str:
    filled = [(cell, text) for cell in cells if (text := plain(cell.words)) not in ("", DASH)]
    if all(cell.value is not None for cell, _ in filled):
        return "n"
    return "long" if any(len(text) > _SENTENCE_CHARACTERS for _, text in filled) else ""
