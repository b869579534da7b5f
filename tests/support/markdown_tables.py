"""Rows of the Markdown tables of a report."""


def tables_in(text: str) -> list[list[str]]:
    """Return the lines of each table below its header."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    return [lines[2:] for lines in blocks]
