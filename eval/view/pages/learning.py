"""Learning: success by attempt, ratings, what training did, and how the wording of the advice changed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from retroformer.coach.stories.runs import OpenRun
from retroformer.errors import RetroformerError
from retroformer.files.document import LineChart, Report, Series, chapter

from ...report.html import ReportPage
from ...report.training import TrainedAdapter, adapters_in, curve_table, reward_audit, sort_by_stage, training_figures
from .. import charts
from ..index import Index, arms_of
from ..site import Page, Site
from ..wording import Wording, typical_words, wordings

_BARS = 20
"""Bars of the distribution of ratings."""


@dataclass(frozen=True)
class Chart:
    """A chart with its title and the numbers behind it."""

    title: str
    svg: Markup
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    legend: str = ""


def learning(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show one run."""
    source = site.source(parameters.get("run", ""))
    authors = wordings(site.index, source.name)
    shown = {
        "source": source,
        "charts": [*_success(site.index, source), *_ratings(site.index, source.name)],
        "page": _training(source),
        "wordings": authors,
        "typical": _typical(site.index, authors, parameters),
    }
    return Page("learning.html", "Learning", shown)


def _success(index: Index, source: OpenRun) -> Iterator[Chart]:
    """Yield the share of the tasks solved by each trial, a line for each arm."""
    lines = []
    query = (
        "SELECT solved_at, count(*) AS stories, max(trials) AS trials FROM story "
        "WHERE run = ? AND arm = ? AND outcome != 'invalid' GROUP BY solved_at"
    )
    with index.connect() as connection:
        for arm in arms_of(source):
            rows = connection.execute(query, (source.name, arm)).fetchall()
            if not rows:
                continue
            total = sum(row["stories"] for row in rows)
            solved = {row["solved_at"]: row["stories"] for row in rows}
            shares = [
                sum(solved.get(number, 0) for number in range(trial + 1)) / total
                for trial in range(max(row["trials"] for row in rows))
            ]
            lines.append(Series(name=arm, points=tuple(enumerate(shares))))
    if lines:
        title = "Share of the tasks solved by each attempt"
        chart = LineChart(x_title="trial", y_title="share solved", series=tuple(lines))
        header = ["arm", *(f"trial {trial}" for trial in range(max(len(line.points) for line in lines)))]
        rows = [[line.name, *(f"{share:.3f}" for _, share in line.points)] for line in lines]
        yield Chart(title, charts.svg(chart, title), header, rows, charts.legend(chart))


def _ratings(index: Index, run: str) -> Iterator[Chart]:
    """Yield the distribution of the ratings of each arm that has some."""
    with index.connect() as connection:
        query = "SELECT arm, rating, count(*) AS pieces FROM advice WHERE run = ? AND rating IS NOT NULL GROUP BY 1, 2"
        counts: dict[str, Counter[float]] = {}
        for row in connection.execute(query, (run,)):
            counts.setdefault(row["arm"], Counter())[row["rating"]] += row["pieces"]
    for arm, ratings in counts.items():
        bars = _binned(ratings)
        title = f"Ratings in {arm}"
        header, rows = ["rating", "pieces of advice"], [[label, f"{count:g}"] for label, count in bars]
        yield Chart(title, charts.bar_chart(title, bars, "rating", "pieces of advice"), header, rows)


def _binned(ratings: Counter[float]) -> list[tuple[str, float]]:
    """Return a bar for each rating if they are few, else for each of twenty ranges."""
    if len(ratings) <= _BARS:
        return [(f"{rating:+.3g}" if rating else "0", count) for rating, count in sorted(ratings.items())]
    low, high = min(ratings), max(ratings)
    width = (high - low) / _BARS
    bins = [0] * _BARS
    for rating, count in ratings.items():
        bins[min(_BARS - 1, int((rating - low) / width))] += count
    return [(f"{low + (number + 0.5) * width:+.2f}", count) for number, count in enumerate(bins)]


def _training(source: OpenRun) -> ReportPage:
    """Return the curves and the audits of the run's finished stages as in a report; damaged ones are left out."""
    folders = sorted(source.folder.iterdir()) if source.folder.is_dir() else []
    trained = list[TrainedAdapter]()
    for folder in folders:
        if folder.is_dir() and not folder.is_symlink():
            with suppress(RetroformerError):
                trained += adapters_in([folder])
    trained = sort_by_stage(trained)
    parts = (*training_figures(trained), *curve_table(trained), *reward_audit(trained)) if trained else ()
    chapters = (chapter("Training", *parts),) if parts else ()
    return ReportPage(Report(title="Learning", run=source.name, place="", chapters=chapters))


def _typical(index: Index, authors: Sequence[Wording], parameters: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the words that tell two authors apart: those of the query, by default the first and the last."""
    if len(authors) < 2:
        return None
    by_name = {author.name: author for author in authors}
    before = by_name.get(parameters.get("before", ""), authors[0])
    after = by_name.get(parameters.get("after", ""), authors[-1])
    return {
        "before": before,
        "after": after,
        "less": typical_words(index, before, after),
        "more": typical_words(index, after, before),
    }
