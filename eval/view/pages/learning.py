"""Learning: success by attempt, ratings, what training did, and how the wording of the advice changed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from retroformer.coach.stories.reading import story_arms
from retroformer.coach.stories.runs import OpenRun
from retroformer.errors import RetroformerError
from retroformer.files.document import LineChart, Report, Series, chapter

from ...measure.results import Floats
from ...report.html import ReportPage
from ...report.training import TrainedAdapter, adapters_in, curve_table, reward_audit, sort_by_stage, training_figures
from .. import charts
from ..index import Index
from ..site import Page, Site
from .overview import folders

_BARS = 20
"""Bars of the distribution of ratings."""
_FLAGS = ("truncated", "copy", "repeated plan", "same steps")
"""Flags whose share is given of each author."""
_WORDS = 12
"""Words that are shown on each side."""
_PRIOR = 0.5
_CLEAR_DEVIATIONS = 1.96
"""Standard deviations from which a difference is shown."""

Chart = Mapping[str, Any]
"""Title, drawing and legend of a chart, and header and rows of the numbers behind it."""
Author = Mapping[str, Any]
"""Counts over the advice of one model in one arm."""


def learning(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show one run."""
    source = site.source(parameters.get("run", ""))
    authors = advice_authors(site.index, source.name)
    shown = {
        "source": source,
        "charts": [*_success(site.index, source), *_ratings(site.index, source.name)],
        "page": _training(source),
        "authors": authors,
        "author_flags": _FLAGS,
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
        for arm in story_arms(source.store):
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
        drawing, legend = charts.svg(chart, title), charts.legend(chart)
        yield {"title": title, "svg": drawing, "header": header, "rows": rows, "legend": legend}


def _ratings(index: Index, run: str) -> Iterator[Chart]:
    """Yield the distribution of the ratings of each arm that has some."""
    with index.connect() as connection:
        query = "SELECT arm, rating, count(*) AS pieces FROM advice WHERE run = ? AND rating IS NOT NULL GROUP BY 1, 2"
        counts: dict[str, Counter[float]] = {}
        for row in connection.execute(query, (run,)):
            counts.setdefault(row["arm"], Counter())[row["rating"]] += row["pieces"]
    for arm, ratings in counts.items():
        bars = _bins(ratings)
        title, header = f"Ratings in {arm}", ("rating", "pieces of advice")
        rows = [[label, f"{count:g}"] for label, count in bars]
        drawing = charts.bar_chart(title, bars, *header)
        yield {"title": title, "svg": drawing, "header": header, "rows": rows, "legend": ""}


def _bins(ratings: Counter[float]) -> list[tuple[str, float]]:
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
    trained = list[TrainedAdapter]()
    for folder in folders(source.folder):
        with suppress(RetroformerError):
            trained += adapters_in([folder])
    trained = sort_by_stage(trained)
    parts = (*training_figures(trained), *curve_table(trained), *reward_audit(trained)) if trained else ()
    chapters = (chapter("Training", *parts),) if parts else ()
    return ReportPage(Report(title="Learning", run=source.name, place="", chapters=chapters))


def _typical(index: Index, authors: Sequence[Author], parameters: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the words that tell two authors apart: those of the query, by default the first and the last."""
    if len(authors) < 2:
        return None
    by_name = {author["name"]: author for author in authors}
    before = by_name.get(parameters.get("before", ""), authors[0])
    after = by_name.get(parameters.get("after", ""), authors[-1])
    return {
        "before": before,
        "after": after,
        "less": typical_words(index, before, after),
        "more": typical_words(index, after, before),
    }


def advice_authors(index: Index, run: str) -> list[Author]:
    """Return the models of each arm with counts over their advice, in the order of their first advice."""
    flags = ", ".join(f"sum(instr(flags, '[{flag}]') > 0) AS \"{flag}\"" for flag in _FLAGS)
    query = (
        "SELECT arm || ', ' || model AS name, arm, counted.* FROM author JOIN ("
        "SELECT author, count(*) AS pieces, sum(words) AS words, count(rating) AS rated, sum(rating > 0) AS gained, "
        f"sum(rating) AS rating, min(written_at) AS written_at, {flags} FROM advice "
        "WHERE words AND author IN (SELECT id FROM author WHERE run = :run) GROUP BY author"
        ") AS counted ON counted.author = author.id ORDER BY written_at, author.id"
    )
    with index.connect() as connection:
        return [dict(row) for row in connection.execute(query, {"run": run})]


def typical_words(index: Index, one: Author, other: Author) -> Sequence[tuple[str, int, int]]:
    """Return the words that are more typical of `one`, with the number of pieces of each that hold them.

    They are ordered by the log odds ratio in units of its standard deviation (Monroe et al., 2008, eq. 22, with a flat
    prior), so that rare words do not come first.
    """
    query = (
        "SELECT word, pieces, ifnull((SELECT pieces FROM author_word WHERE author = :other AND word = own.word), 0) "
        "FROM author_word AS own WHERE author = :one"
    )
    with index.connect() as connection:
        rows = [tuple(row) for row in connection.execute(query, {"one": one["author"], "other": other["author"]})]
    counts = np.array([row[1:] for row in rows], dtype=float).reshape(-1, 2)
    scores = _scores(counts[:, 0], one["pieces"], counts[:, 1], other["pieces"])
    ranked = sorted((-scores[number], rows[number]) for number in np.flatnonzero(scores > _CLEAR_DEVIATIONS))
    return [row for _, row in ranked[:_WORDS]]


def _scores(here_W: Floats, pieces_here: int, there_W: Floats, pieces_there: int) -> Floats:
    """Return the log odds ratio of each word in units of its standard deviation, (W,)."""
    a, b = here_W + _PRIOR, pieces_here - here_W + _PRIOR
    c, d = there_W + _PRIOR, pieces_there - there_W + _PRIOR
    scores: Floats = np.log(a * d / (b * c)) / np.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
    return scores
