"""Markdown tables, and text of models and configs that stays text in Markdown."""

import re
from collections.abc import Iterable, Sequence
from textwrap import shorten

CAPTION = "Table: "
"""Begin of the paragraph before a table that is its caption, as in Pandoc."""

_BORDER = re.compile(r"(?<!\\)\|")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~&])")
_TICKS = re.compile("`+")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Format a table whose cells and caption are already Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join("| " + " | ".join(map(_cell, cells)) + " |" for cells in lines)
    return f"{CAPTION}{caption}\n\n{text}" if caption else text


def _cell(text: str) -> str:
    """Return text that stays in its cell, whatever an arm's name contains."""
    return _BORDER.sub(r"\|", " ".join(text.splitlines()))


def plain(text: str) -> str:
    """Return a text as one line with Markdown escaped, such as the name of an arm."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def quoted(text: str, most_characters: int) -> str:
    """Return the start of a text as one line with Markdown escaped; `(nothing)` if it is blank."""
    return plain(shorten(text, most_characters, placeholder=" ...")) or "(nothing)"


def code(text: str) -> str:
    """Return a text as a code span, such as the name of a model."""
    line = " ".join(text.split())
    ticks = _longer_than_any_in(line, 1)
    space = " " * (len(ticks) > 1)
    return f"{ticks}{space}{line}{space}{ticks}"


def fenced(text: str, kind: str, title: str = "") -> str:
    """Return a text as a block of code of a kind, such as `yaml`; its title is for readers of the HTML."""
    ticks = _longer_than_any_in(text, 3)
    # The line that opens a block may hold no backtick.
    opening = f"{ticks}{kind} {plain(title.replace('`', ' '))}".rstrip()
    return f"{opening}\n{text.rstrip()}\n{ticks}"


def _longer_than_any_in(text: str, least: int) -> str:
    longest = max((len(ticks) for ticks in _TICKS.findall(text)), default=0)
    return "`" * max(least, longest + 1)


def share(count: int, whole: int) -> str:
    """Format a share, such as `3 of 4 (75%)`; `-` if `whole` is 0."""
    # A flag that was counted once prints as a number, too.
    return f"{count:d} of {whole:d} ({count / whole:.0%})" if whole else "-"
