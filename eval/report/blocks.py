"""Parts of a report's page, made from its Markdown: sections of prose, tables, figures and folded text.

Raw HTML and pictures in the Markdown are shown as text, since models wrote some of it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from markupsafe import Markup

from retroformer.files.text import visible
from retroformer.markdown import CAPTION

from .document import Figure, Report
from .linking import NoLinks, ReportLinks, linked_row
from .sorting import ReportCell, kind_of

_UNBROKEN = re.compile(r"(?:-?\d[\d.,]*: )?-?\d[\d.,]* \[-?\d[\d.,]*, -?\d[\d.,]*\]|\bp (?:=|&lt;) [\d.]*\d")
"""Intervals and p-values."""
_PART = "/report.md"


@dataclass(frozen=True)
class Prose:
    """Paragraphs and lists."""

    kind: ClassVar = "prose"
    html: Markup


@dataclass(frozen=True)
class FoldedText:
    """Text that is shown when its title is clicked."""

    kind: ClassVar = "folded"
    title: str
    text: str


@dataclass(frozen=True)
class ReportTable:
    """Table with its caption."""

    kind: ClassVar = "table"
    address: str
    number: int
    caption: Markup
    header: Sequence[ReportCell]
    rows: Sequence[Sequence[ReportCell]]
    kinds: Sequence[str]
    """Class of each column: `n` for numbers, `long` for sentences, else empty."""


@dataclass(frozen=True)
class ReportFigure:
    """Chart with its caption."""

    kind: ClassVar = "figure"
    address: str
    number: int
    caption: str
    svg: Markup
    legend: Markup


@dataclass(frozen=True)
class FigureRow:
    """Charts side by side."""

    kind: ClassVar = "figures"
    figures: Sequence[ReportFigure]


Block = Prose | FoldedText | ReportTable | FigureRow


@dataclass(frozen=True)
class ReportSection:
    """Section with the address of its heading; the front of the report has neither title nor address."""

    address: str
    title: str
    blocks: Sequence[Block]


def sections_of(report: Report, links: ReportLinks | None = None) -> list[ReportSection]:
    """Return the front of a report and its sections."""
    return list(_Reader(report, links or NoLinks()).sections())


class _Reader:
    """Reader of one report, which numbers its tables and figures and gives each an address of its own."""

    def __init__(self, report: Report, links: ReportLinks) -> None:
        self._report, self._links = report, links
        # As the tables show them: on one line, with deceiving characters as escapes.
        self._arms = {visible(" ".join(name.split())): stored for name, stored in report.arms.items()}
        self._figures = {figure.file_name: figure for figure in report.figures}
        self._markdown = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")
        self._addresses = Counter[str](("main", "progress", "contents"))
        self._tables = self._drawn = 0
        self._title = self._address = ""

    def sections(self) -> Iterator[ReportSection]:
        root = SyntaxTreeNode(self._markdown.parse(visible(self._report.text)))
        blocks: list[Block | ReportFigure] = []
        nodes = root.children
        for place, node in enumerate(nodes):
            if node.type == "heading" and node.tag == "h1":
                continue
            if node.type == "heading" and node.tag == "h2":
                yield ReportSection(self._address, self._title, _in_rows(blocks))
                self._title, blocks = _text(node), []
                self._address = self._new(_slug(self._title))
            elif not _is_caption(node, nodes[place + 1 : place + 2]):
                blocks.append(self._block(node, nodes[place - 1] if place else None))
        yield ReportSection(self._address, self._title, _in_rows(blocks))

    def _block(self, node: SyntaxTreeNode, before: SyntaxTreeNode | None) -> "Block | ReportFigure":
        if node.type == "table":
            return self._table(node, before)
        if node.type == "fence":
            _, _, title = node.info.partition(" ")
            return FoldedText(title or self._title, node.content)
        if (figure := self._figures.get(_picture(node))) is not None:
            return self._figure(figure)
        return Prose(self._rendered(node.to_tokens()))

    def _table(self, node: SyntaxTreeNode, before: SyntaxTreeNode | None) -> ReportTable:
        self._tables += 1
        head, *bodies = ([self._cells(row) for row in part.children] for part in node.children)
        (header,) = head
        names = [cell.text for cell in header]
        rows = [linked_row(names, row, self._arms, self._links) for body in bodies for row in body]
        caption = Markup("{}").format(self._title)
        if before is not None and _is_caption(before, [node]):
            caption = Markup(self._rendered(before.children[0].to_tokens()).removeprefix(CAPTION))
        return ReportTable(
            address=self._new(f"table-{self._address}"),
            number=self._tables,
            caption=caption,
            header=header,
            rows=rows,
            kinds=[kind_of([row[column] for row in rows]) for column in range(len(header))],
        )

    def _cells(self, row: SyntaxTreeNode) -> list[ReportCell]:
        return [ReportCell(self._rendered(cell.children[0].to_tokens()), _text(cell)) for cell in row.children]

    def _figure(self, figure: Figure) -> ReportFigure:
        self._drawn += 1
        links = {name: self._links.stories(stored) for name, stored in self._report.arms.items()}
        return ReportFigure(
            address=self._new(f"figure-{figure.name}"),
            number=self._drawn,
            caption=visible(figure.caption),
            svg=figure.chart.svg(figure.caption),
            legend=figure.chart.legend({name: link for name, link in links.items() if link}),
        )

    def _rendered(self, tokens: Sequence[Token]) -> Markup:
        """Return the HTML of some tokens, with links to parts of the report in place of those to their Markdown."""
        for token in (child for parent in tokens for child in parent.children or ()):
            address = unquote(str(token.attrs.get("href", "")))
            if token.type == "link_open" and address.endswith(_PART):
                if there := self._links.part(address.removesuffix(_PART)):
                    token.attrSet("href", there)
                else:
                    del token.attrs["href"]
        return Markup(self._markdown.renderer.render(tokens, self._markdown.options, {}))

    def _new(self, address: str) -> str:
        self._addresses[address] += 1
        earlier = self._addresses[address] - 1
        return f"{address}-{earlier + 1}" if earlier else address


class _Renderer(RendererHTML):
    """Renderer that keeps an interval on one line and shows pictures as their text."""

    def text(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        escaped = escapeHtml(tokens[idx].content)
        return _UNBROKEN.sub(lambda match: f'<span class="interval">{match[0]}</span>', escaped)

    def image(self, tokens: Sequence[Token], idx: int, options: Any, env: Any) -> str:
        return escapeHtml(tokens[idx].content)


def _is_caption(node: SyntaxTreeNode, following: Sequence[SyntaxTreeNode]) -> bool:
    return (
        node.type == "paragraph"
        and _text(node).startswith(CAPTION)
        and any(other.type == "table" for other in following)
    )


def _picture(node: SyntaxTreeNode) -> str:
    """Return the file of a paragraph that is a picture and nothing else; empty for other nodes."""
    pictures = [child for inline in node.children for child in inline.children] if node.type == "paragraph" else []
    return str(pictures[0].attrs.get("src", "")) if [child.type for child in pictures] == ["image"] else ""


def _text(node: SyntaxTreeNode) -> str:
    """Return the text of a node without its markup."""
    if not node.children:
        return node.content if node.type in ("text", "code_inline") else ""
    return "".join(map(_text, node.children))


def _slug(title: str) -> str:
    """Return the words of a title without its numbers, which differ from run to run."""
    return "-".join(re.findall("[a-z]+", title.lower())) or "section"


def _in_rows(blocks: Iterable["Block | ReportFigure"]) -> list[Block]:
    """Return the blocks with neighbouring figures in one row."""
    rows: list[Block] = []
    for block in blocks:
        if not isinstance(block, ReportFigure):
            rows.append(block)
        elif rows and isinstance(rows[-1], FigureRow):
            rows[-1] = FigureRow((*rows[-1].figures, block))
        else:
            rows.append(FigureRow((block,)))
    return rows
