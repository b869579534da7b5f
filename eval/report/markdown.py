"""A report as Markdown. Whatever a model or a config wrote stays text."""

import re
from collections.abc import Iterable, Sequence

from retroformer.files import document as doc

_CAPTION = "Table: "
"""Begin of the paragraph before a table that is its caption, as in Pandoc."""
_BORDER = re.compile(r"(?<!\\)\|")
_MARKUP = re.compile(r"[\\`*_>|~&]|<(?! \d)")
_BRACKETS = re.compile(r"[\[\]]")
_TICKS = re.compile("`+")


def to_markdown(report: doc.Report) -> str:
    blocks = [f"# {escape(report.title)}", *([escape(report.about)] if report.about else [])]
    for chapter in report.chapters:
        blocks += [f"## {escape(chapter.title)}"] if chapter.title else []
        blocks += map(part_in_markdown, chapter.parts)
    return "\n\n".join(blocks) + "\n"


def part_in_markdown(part: doc.Part) -> str:
    match part:
        case doc.Paragraph():
            return _inline(part.words)
        case doc.Listing():
            return "\n".join(f"- {_inline(item.words)}" for item in part.items)
        case doc.Table():
            header = [escape(column.title) for column in part.columns]
            lines = table_lines(header, [list(map(_cell_text, row)) for row in part.rows])
            return f"{_CAPTION}{_inline(part.caption)}\n\n{lines}"
        case doc.Folded():
            return _fence(part)
        case doc.Figure():
            return f"![{escape(part.caption)}]({part.file_name})"


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the lines of a table whose cells are already Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    # Text stays in its cell, whatever an arm's name contains.
    cells = [[_BORDER.sub(r"\|", " ".join(text.splitlines())) for text in line] for line in lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def escape(text: str) -> str:
    """Return a text as one line with its Markdown escaped."""
    line = _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
    # Brackets alone are no link, and intervals are easier to read without backslashes.
    return _BRACKETS.sub(r"\\\g<0>", line) if "](" in line else line


def _cell_text(cell: doc.Cell) -> str:
    return f"[{_inline(cell.words)}](<{cell.part}/report.md>)" if cell.part else _inline(cell.words)


def _inline(words: doc.Words) -> str:
    if isinstance(words, str):
        return escape(words)
    return "".join(map(_span, words)).strip()


def _span(span: str | doc.StyledText) -> str:
    if isinstance(span, str):
        # The spaces between spans stay.
        return " " * span[:1].isspace() + escape(span) + " " * span[-1:].isspace() if span.strip() else " " * bool(span)
    match span.style:
        case "emphasis":
            return f"*{escape(span.text)}*"
        case "strong":
            return f"**{escape(span.text)}**"
        case "code":
            return _code(span.text)
        case "number":
            return span.text


def _code(text: str) -> str:
    line = doc.plain(text)
    ticks = _longer_than_any_in(line, 1)
    space = " " * (len(ticks) > 1)
    return f"{ticks}{space}{line}{space}{ticks}"


def _fence(folded: doc.Folded) -> str:
    ticks = _longer_than_any_in(folded.text, 3)
    # The line that opens a block may hold no backtick.
    opening = f"{ticks}{folded.language} {escape(folded.title.replace('`', ' '))}"
    return f"{opening}\n{folded.text.rstrip()}\n{ticks}"


def _longer_than_any_in(text: str, least: int) -> str:
    longest = max((len(ticks) for ticks in _TICKS.findall(text)), default=0)
    return "`" * max(least, longest + 1)
