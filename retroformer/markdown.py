"""Markdown tables that escape the text of models."""

import re
from collections.abc import Iterable, Sequence
from textwrap import shorten

_BORDER = re.compile(r"(?<!\\)\|")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~])")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table whose cells are already Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, cells)) + " |" for cells in lines)


def _cell(text: str) -> str:
    """Return text that stays in its cell, whatever an arm's name contains."""
    return _BORDER.sub(r"\|", " ".join(text.splitlines()))


def quoted(text: str, most_characters: int) -> str:
    """Return the start of a text as one line with Markdown escaped; `(nothing)` if it is blank."""
    return _MARKDOWN.sub(r"\\\1", shorten(text, most_characters, placeholder=" ...")) or "(nothing)"


def share(count: int, whole: int) -> str:
    """Format a share, such as `3 of 4 (75%)`; `-` if `whole` is 0."""
    # A flag that was counted once prints as a number, too.
    return f"{count:d} of {whole:d} ({count / whole:.0%})" if whole else "-"
