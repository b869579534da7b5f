"""Parts of a report as Markdown, and the rows of its tables."""

from collections.abc import Iterable

from eval.report.markdown import part_in_markdown
from retroformer.files.document import Chapter, Part, Words, chapter


def tables_in(text: str) -> list[list[str]]:
    """Return the lines of each table below its header."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    return [lines[2:] for lines in blocks]


def markdown(*parts: Part | Words) -> str:
    """Return parts of a chapter as they are in report.md."""
    return "\n\n".join(map(part_in_markdown, chapter("", *parts).parts))


def chapters_in_markdown(chapters: Iterable[Chapter]) -> str:
    """Return the text of all chapters without their titles."""
    return "\n\n".join(markdown(*one.parts) for one in chapters)
