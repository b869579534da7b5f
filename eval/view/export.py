"""Writes the site as one HTML file that opens from disk, without a server and without a network.

Its parts are the pages of the site, from the same functions and templates; links between them lead to their anchors. It
holds a bounded number of stories, and says what it leaves out. A part is written before the next is made, so that the
memory does not grow with the file.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from sqlite3 import Row
from typing import Any, NamedTuple

from markupsafe import Markup

from retroformer.coach.stories.runs import OpenRun
from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.files.durable import replace_file

from .index import Index
from .pages.compare import Side, comparison, evaluated_sides, sides
from .pages.learning import learning
from .pages.overview import overview
from .pages.report import parts_of, report
from .pages.review import review
from .pages.stories import StoryFilter, StoryPage, table
from .pages.story import whole_story
from .rendering import inline
from .site import Page, Site

_LISTED_TASKS = 50
"""Tasks that a comparison lists of each group."""
_LISTED_GROUPS = ("won", "lost")
_MOST_COMPARISONS = 15
"""All pairs of six arms."""
_MOST_REPORTS = 10
_STAGE = "substr(arm, 1, instr(arm || '/', '/') - 1)"
"""First part of an arm's name: an arm of `eval/` is compared with other arms of `eval/`."""
_QUERY = f"""
WITH ranked AS (
    SELECT run, {_STAGE} AS stage, task, CASE
        WHEN max(mark != '') THEN 0
        WHEN min(solved_at IS NULL) < max(solved_at IS NULL) THEN 1
        WHEN max(best) > 0 OR min(worst) < 0 THEN 2
        ELSE 3 END AS rank
    FROM story GROUP BY run, stage, task
), placed AS (
    SELECT run, stage, task, row_number() OVER (PARTITION BY run, stage ORDER BY rank, task) AS place
    FROM ranked ORDER BY place, run, stage LIMIT :most
)
SELECT story.* FROM placed CROSS JOIN story
ON story.task = placed.task AND story.run = placed.run AND {_STAGE.replace("arm", "story.arm")} = placed.stage
ORDER BY place, placed.run, placed.stage, story.arm LIMIT :most
"""


class Anchors:
    """Anchors of the parts of a file by the path and query of their pages."""

    def __init__(self) -> None:
        self._anchors: dict[tuple[str, frozenset[tuple[str, str]]], str] = {}

    def add(self, anchor: str, path: str, **query: str) -> None:
        """Make links to this page lead to `anchor`, unless an earlier part already shows the page."""
        self._anchors.setdefault(_key(path, query), anchor)

    def __call__(self, path: str, **query: Any) -> str:
        """Return the address of a page within the file; empty if the file does not hold it."""
        if path == "stories" and _key(path, query)[1] and set(query) <= {"run", "arm"}:
            return self(path)  # The table has the stories of all arms.
        turn = query.pop("at", "") if path == "story" else ""
        anchor = self._anchors.get(_key(path, query))
        if anchor is None:
            return ""
        return f"#{anchor}-t{turn}" if turn else f"#{anchor}"


def _key(path: str, query: dict[str, Any]) -> tuple[str, frozenset[tuple[str, str]]]:
    return path, frozenset((name, value) for name, value in query.items() if value not in (None, ""))


class _FilePart(NamedTuple):
    """A part of the file, rendered only when it is written."""

    anchor: str
    title: str
    """Text of its link at the top of the file; empty for one without."""
    page: Callable[[], Page]


def export_site(runs: Sequence[OpenRun], path: Path, most_stories: int, index: Path | None = None) -> str:
    """Write the file, which appears complete or not at all. Return a sentence that says what it holds.

    Raises:
        ConfigError: the name of the file says that it is no HTML.
        StoreError: a run cannot be read.
    """
    if path.suffix not in (".html", ".htm") or path.is_dir():
        raise ConfigError(f"{path} is not the name of an HTML file: end it with .html.")
    anchors = Anchors()
    site = Site(runs, Index(runs, index), anchors)
    site.index.update()
    rows, total = select_stories(site.index, most_stories)
    # Training seeds of an arm count together.
    every = combinations(evaluated_sides(sides(site.index)), 2)
    pairs = [(first, second) for second, first in every if first.run == second.run]
    reports = list(_reports(site, anchors))
    parts = [*_front(site, anchors, reports), *_comparisons(site, anchors, pairs), *_stories(site, anchors, rows)]
    notice = " ".join(_notice(len(rows), total, len(pairs), len(reports)))
    content = {
        "nav": {f"#{part.anchor}": part.title for part in parts if part.title},
        "notice": notice,
        "parts": (_render(site, part) for part in parts),
        "inline": inline("keys.js", "sort.js"),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
        file.writelines(site.stream(Page("file.html", ", ".join(source.name for source in runs), content)))
    return f"{path} shows {', '.join(source.name for source in runs)}. {notice}"


def _front(site: Site, anchors: Anchors, reports: Sequence[_FilePart]) -> Iterator[_FilePart]:
    """Yield all parts before the comparisons."""
    anchors.add("overview", "")
    yield _FilePart("overview", "Overview", partial(overview, site, {}))
    yield from reports[:_MOST_REPORTS]
    for number, source in enumerate(site.sources, start=1):
        anchor = f"learning-{number}"
        anchors.add(anchor, "learning", run=source.name)
        title = "Learning" if number == 1 else ""
        yield _FilePart(anchor, title, partial(learning, site, {"run": source.name}))


def _reports(site: Site, anchors: Anchors) -> Iterator[_FilePart]:
    """Yield the reports of all runs, each once."""
    seen = dict[Path, str]()
    for source in site.sources:
        for name, folder in parts_of(source).items():
            new = folder not in seen
            anchor = seen.setdefault(folder, f"report-{len(seen) + 1}")
            if len(seen) <= _MOST_REPORTS:
                anchors.add(anchor, "report", run=source.name, part=name)
            if new:
                page = partial(report, site, {"run": source.name, "part": name})
                yield _FilePart(anchor, "Report" if len(seen) == 1 else "", page)


def _comparisons(site: Site, anchors: Anchors, pairs: Sequence[tuple[Side, Side]]) -> Iterator[_FilePart]:
    every = sides(site.index)
    for number, pair in enumerate(pairs[:_MOST_COMPARISONS], start=1):
        anchor, (first, second) = f"compare-{number}", pair
        for first_side, second_side in ((first, second), (second, first)):
            anchors.add(anchor, "compare", a=first_side.name, b=second_side.name)
        for group in _LISTED_GROUPS:
            anchors.add(f"{anchor}-{group}", "compare", a=first.name, b=second.name, show=group)
        page = partial(comparison, site, every, pair, _LISTED_GROUPS, _LISTED_TASKS)
        yield _FilePart(anchor, "Compare" if number == 1 else "", page)


def _stories(site: Site, anchors: Anchors, rows: Sequence[Row]) -> Iterator[_FilePart]:
    """Yield the table of stories, the review if a story is marked, and each story."""
    anchors.add("stories", "stories")
    page = StoryPage(list(rows), len(rows), 1, 1)
    yield _FilePart("stories", "Stories", partial(table, site, StoryFilter(), page))
    if any(source.store.marks.current() for source in site.sources):
        anchors.add("review", "review")
        yield _FilePart("review", "Review", partial(review, site, {}))
    for number, (before, row, after) in enumerate(zip([None, *rows], rows, [*rows[1:], None], strict=False), start=1):
        run, arm, task = row["run"], row["arm"], row["task"]
        anchors.add(f"story-{number}", "story", run=run, arm=arm, task=task)
        yield _FilePart(f"story-{number}", "", partial(whole_story, site, (run, arm, task), (before, after)))


def _render(site: Site, part: _FilePart) -> Markup:
    try:
        page = part.page()
    except (DamagedFile, MissingInput) as error:
        page = Page("message.html", "Not shown", {"text": str(error)})
    return site.part(page, part.anchor)


def _notice(stories: int, total: int, pairs: int, reports: int) -> Iterator[str]:
    """Yield sentences that say what the file holds and what it leaves out."""
    if stories < total:
        yield (
            f"This file holds {stories:,} of {total:,} stories: stories of marked tasks first, then of those that some "
            "arms solved and others did not, then of those where a retry changed the return; runs, and collection and "
            "evaluation, take turns."
        )
    else:
        yield f"This file holds all {total:,} stories."
    if pairs > _MOST_COMPARISONS:
        yield f"It leaves out {pairs - _MOST_COMPARISONS:,} of {pairs:,} comparisons of arms."
    if reports > _MOST_REPORTS:
        yield f"It leaves out {reports - _MOST_REPORTS:,} of {reports:,} reports."


def select_stories(index: Index, most: int) -> tuple[list[Row], int]:
    """Return the rows of at most `most` stories in reading order, and the total number of stories."""
    with index.connect() as connection:
        rows = connection.execute(_QUERY, {"most": most}).fetchall()
        (total,) = connection.execute("SELECT count(*) FROM story").fetchone()
    return rows, total
