"""Markdown tables in which the words of a model stay words."""

import re
from collections.abc import Iterable, Sequence
from textwrap import shorten

_BORDER = re.compile(r"(?<!\\)\|")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~])")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, cells)) + " |" for cells in lines)


def _cell(text: str) -> str:
    """Text that stays in its cell, whatever an arm is called."""
    return _BORDER.sub(r"\|", " ".join(text.splitlines()))


def quoted(text: str, most_characters: int) -> str:
    """The start of a text as one line that Markdown leaves as it is; `(nothing)` where it is blank."""
    return _MARKDOWN.sub(r"\\\1", shorten(text, most_characters, placeholder=" ...")) or "(nothing)"


def share(count: int, whole: int) -> str:
    """`3 of 4 (75 %)`; `-` of nothing."""
    return f"{count} of {whole} ({count / whole:.0%})".replace("%", " %") if whole else "-"
