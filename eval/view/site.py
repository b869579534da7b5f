"""What all pages of the site share: the runs, their index and the templates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from retroformer.coach.stories.runs import OpenRun

from .index import Index
from .rendering import Link, link, templates

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
    shown: Mapping[str, Any]


class Site:
    """Everything that a page needs."""

    def __init__(self, sources: Sequence[OpenRun], index: Index, link: Link = link) -> None:
        self.sources, self.index, self.link = sources, index, link
        self._templates = templates(link)

    def source(self, name: str) -> OpenRun:
        """Return the run of this name, or the first one if the name is empty. Raises NoSuchPage."""
        for source in self.sources:
            if name in ("", source.name):
                return source
        raise NoSuchPage(f"There is no run {name!r} here.")

    def render(self, page: Page, path: str) -> str:
        """Return the HTML of a page."""
        shared = {"path": path, "nav": NAVIGATION}
        return self._html(page, {"layout": "base.html", "here": "", "in_file": False, **shared})

    def part(self, page: Page, anchor: str) -> Markup:
        """Return a page as a part of a file, at this anchor, with which the ids within the page begin."""
        return Markup(self._html(page, {"layout": "part.html", "here": f"{anchor}-", "in_file": True}))

    def stream(self, page: Page) -> Iterator[str]:
        """Yield the HTML of a page piece by piece."""
        return self._templates.get_template(page.template).generate({"title": page.title, **page.shown})

    def _html(self, page: Page, shared: Mapping[str, Any]) -> str:
        shared = {"title": page.title, "site": self, **shared}
        return self._templates.get_template(page.template).render({**shared, **page.shown})
