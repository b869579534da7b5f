"""Addresses within a file: what links to a page of the site leads to the part of the file that shows the same."""

from typing import Any

_TABLE = "stories"
_OF_ARM = {"run", "arm"}


class Anchors:
    """Anchors of the parts of a file by the path and query of their pages."""

    def __init__(self) -> None:
        self._anchors: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}

    def add(self, anchor: str, path: str, **query: str) -> None:
        """Make links to this page lead to `anchor`, unless an earlier part already shows the page."""
        self._anchors.setdefault(_page(path, query), anchor)

    def __call__(self, path: str, **query: Any) -> str:
        """Return the address of a page within the file; empty if the file does not hold it."""
        if path == _TABLE and _page(path, query)[1] and set(query) <= _OF_ARM:
            return self(_TABLE)  # The table has the stories of all arms.
        turn = query.pop("at", "") if path == "story" else ""
        anchor = self._anchors.get(_page(path, query))
        if anchor is None:
            return ""
        return f"#{anchor}-t{turn}" if turn else f"#{anchor}"


def _page(path: str, query: dict[str, Any]) -> tuple[str, frozenset[tuple[str, str]]]:
    return path, frozenset((name, value) for name, value in query.items() if value not in (None, ""))
