"""What all pages of the site share: the runs, their index and the templates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .index import Index
from .rendering import templates
from .sources import Source

PageOf = Callable[["Site", Mapping[str, str]], "Page"]
"""Function that returns a page, given the query string."""
NAVIGATION = {
    "": "Overview",
    "report": "Report",
    "stories": "Stories",
    "compare": "Compare",
    "learning": "Learning",
    "review": "Review",
}
"""Pages in the site's navigation, in order: their path and title."""


class NoSuchPage(Exception):
    """A URL names a run, arm or task that is not shown. The text says which."""


@dataclass(frozen=True)
class Page:
    """A page: its template and what it shows."""

    template: str
    title: str
    shown: Mapping[str, Any] = field(default_factory=dict)


class Site:
    """Everything that a page needs."""

    def __init__(self, sources: Sequence[Source], index: Index) -> None:
        self.sources, self.index = sources, index
        self._templates = templates()

    def source(self, name: str) -> Source:
        """Return the run of this name, or the only one if the name is empty. Raises NoSuchPage."""
        for source in self.sources:
            if name in ("", source.name):
                return source
        raise NoSuchPage(f"There is no run {name!r} here.")

    def render(self, page: Page, path: str) -> str:
        """Return the HTML of a page."""
        shared = {"title": page.title, "path": path, "site": self, "progress": self.index.progress, "nav": NAVIGATION}
        return self._templates.get_template(page.template).render({**shared, **page.shown})
