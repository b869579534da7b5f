"""Learning: success by attempt, ratings, what training did, and how the wording of the advice changed."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from retroformer.errors import RetroformerError
from retroformer.stage_metrics import METRICS, StageMetrics, first_and_last, read_metrics

from ..charts import LineChart, Points, Series, bar_chart, thinned
from ..index import Index, arms_of
from ..rendering import number
from ..site import Page, Site
from ..sources import Source
from ..wording import Wording, typical_words, wordings

_BARS = 20
"""Bars of the distribution of ratings."""
_HISTORY = {"score": "Score, or live return", "kl": "Divergence from the reference, nats per response"}
_REWARD = {
    "held_out_pairs": "held-out pairs",
    "held_out_accuracy": "accuracy",
    "held_out_longer_wins": "longer wins",
    "held_out_calibration_error": "calibration error",
    "held_out_brier": "Brier score",
    "held_out_correlation": "correlation with the rating",
}


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
    stages = _stages(source.folder)
    authors = wordings(site.index, source.name)
    charts = [*_success(site.index, source), *_ratings(site.index, source.name), *_curves(stages)]
    shown = {
        "source": source,
        "charts": charts,
        "stages": stages,
        "reward": [
            (name, [metrics.measure(key) for key in _REWARD]) for name, metrics in stages if _is_audited(metrics)
        ],
        "reward_header": list(_REWARD.values()),
        "wordings": authors,
        "typical": _typical(site.index, authors, parameters),
    }
    return Page("learning.html", "Learning", shown)


def _success(index: Index, source: Source) -> Iterator[Chart]:
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
        yield Chart(title, chart.svg(title), header, rows, chart.legend())


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
        yield Chart(title, bar_chart(title, bars, "rating", "pieces of advice"), header, rows)


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


def _stages(folder: Path) -> list[tuple[str, StageMetrics]]:
    """Return the metrics of the finished stages in a run's folder; damaged ones are left out."""
    stages = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink() and (path / METRICS).is_file():
            try:
                stages.append((path.name, read_metrics(path)))
            except RetroformerError:
                continue
    return stages


def _curves(stages: Sequence[tuple[str, StageMetrics]]) -> Iterator[Chart]:
    """Yield losses by step, then score and divergence by update, with a line for each stage that has them."""
    losses = {name: metrics.losses for name, metrics in stages if metrics.losses}
    if losses:
        yield _curve("Loss by step", losses, "step", "loss")
    for key, title in _HISTORY.items():
        curves = {
            name: [_number(update.get(key)) for update in metrics.history]
            for name, metrics in stages
            if any(key in update for update in metrics.history)
        }
        if curves:
            yield _curve(f"{title}, by update", curves, "update", key)


def _curve(title: str, curves: Mapping[str, Sequence[float]], x_title: str, y_title: str) -> Chart:
    lines = tuple(Series(name=name, points=_points(values)) for name, values in curves.items())
    chart = LineChart(x_title=x_title, y_title=y_title, series=lines)
    rows = [[name, *_ends(values)] for name, values in curves.items()]
    return Chart(title, chart.svg(title), ["stage", "mean of the first", "of the last"], rows, chart.legend())


def _ends(values: Sequence[float]) -> list[str]:
    """Return the means of the first and of the last values; dashes if there are fewer than two."""
    ends = first_and_last([value for value in values if math.isfinite(value)])
    return [number(mean) for mean in ends or (None, None)]


def _points(values: Sequence[float]) -> Points:
    return thinned([(number + 1, value) for number, value in enumerate(values)])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _is_audited(metrics: StageMetrics) -> bool:
    return metrics.stage in ("reward", "dpo") and bool(metrics.held_out_pairs)


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
