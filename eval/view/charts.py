"""Charts as SVG, within a page or as files. Colours are classes of a stylesheet, so charts follow the dark mode."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from retroformer.files.text import visible
from retroformer.records import Record

from .axes import Axis, Frame, line, short, text

Points = tuple[tuple[float, float], ...]

_FRAME = Frame(width=560, height=300, left=48, right=12, top=30, bottom=44)
_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5l5 9h-10z",
    "M0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
    "M0 5l5 -9h-10z",
    "M-5 -2h3v-3h4v3h3v4h-3v3h-4v-3h-3z",
    "M-5 -2h10v4h-10z",
)
"""Shapes around (0, 0), so that a series is known by more than its colour. With eight hues they make 56 pairs."""
_HUES = 8
_MOST_MARKED = 30
"""Longer series get eight markers instead of one per point, and a band instead of error bars."""
_MOST_POINTS = 400
_LEGEND_ROW = 22
_INTERVAL_ROW = 44
_WIDEST_BAR = 72
_LONGEST_NAME = 34
"""Longest name that still fits beside its numbers on a narrow screen."""
_STYLE = Path(__file__).parent / "static" / "figures.css"


class Series(Record):
    """A line of a chart."""

    name: str
    points: Points
    bounds: Points = ()
    """Lower and upper bound at each point."""
    members: tuple[Points, ...] = ()
    """Lines whose mean this one is, drawn thin."""
    dotted: Points = ()
    """The same quantity computed in another way, drawn dotted."""
    note: str = ""
    """Text behind the name in the legend."""


class LineChart(Record):
    """Lines over one axis."""

    x_title: str
    y_title: str
    series: tuple[Series, ...]
    x_ticks: tuple[float, ...] = ()
    """Values with a tick on the x axis; empty: round numbers."""
    y_ticks: tuple[float, ...] = ()
    """The same for the y axis."""

    def svg(self, title: str) -> Markup:
        """Return the chart without its legend, as a part of a page."""
        return _part(title, _FRAME.height, self._drawn())

    def legend(self, links: Mapping[str, str] | None = None) -> Markup:
        """Return the list of the series with their marks, for a page; names with a link are linked."""
        entries = Markup("").join(
            Markup(
                '<li class="s{}"><svg viewBox="-7 -7 14 14" aria-hidden="true"><path d="{}"/></svg>{}{}</li>'
            ).format(number % _HUES, _marker(number), _linked(series.name, links or {}), f" {series.note}".rstrip())
            for number, series in enumerate(self.series)
        )
        return Markup('<ul class="legend">{}</ul>').format(entries)

    def file(self, title: str) -> str:
        """Return the chart with its legend and style, as a file."""
        legend = Markup("").join(
            Markup('<g class="s{}"><path transform="translate({} {})" d="{}"/></g>').format(
                number % _HUES, _FRAME.left + 4, short(y - 4), _marker(number)
            )
            + text(_FRAME.left + 16, y, f"{series.name} {series.note}", "start")
            for number, series in enumerate(self.series)
            for y in (_FRAME.height + _LEGEND_ROW * (number + 0.6),)
        )
        return _file(title, _FRAME.height + _LEGEND_ROW * len(self.series), self._drawn() + legend)

    def _drawn(self) -> Markup:
        lines = [part for series in self.series for part in (series.points, series.dotted, *series.members)]
        xs = [x for part in lines for x, _ in part]
        ys = [y for part in lines for _, y in part]
        bounds = [bound for series in self.series for pair in series.bounds for bound in pair]
        across, up = Axis.around(xs, self.x_ticks), Axis.around([*ys, *bounds], self.y_ticks)

        def place(point: tuple[float, float]) -> tuple[float, float]:
            return _FRAME.x(across, point[0]), _FRAME.y(up, point[1])

        drawn = Markup("").join(_series(number, series, place) for number, series in enumerate(self.series))
        return _FRAME.grid(across, up, self.x_title, self.y_title) + drawn


class Interval(Record):
    """A row of an interval chart."""

    name: str
    mean: float
    low: float
    high: float
    claimed: bool
    """True if a test agrees that the value is not 0."""


class IntervalChart(Record):
    """Values with their intervals, one below the other, around 0."""

    x_title: str
    rows: tuple[Interval, ...]

    def svg(self, title: str) -> Markup:
        """Return the chart as a part of a page."""
        return _part(title, self._frame.height, self._drawn())

    def legend(self, links: Mapping[str, str] | None = None) -> Markup:
        """Return a list of the rows with a link, for a page; without links, nothing."""
        linked = [_linked(row.name, links) for row in self.rows if row.name in links] if links else []
        entries = Markup("").join(Markup("<li>{}</li>").format(name) for name in linked)
        return Markup('<ul class="legend"><li>Stories of</li>{}</ul>').format(entries) if linked else Markup("")

    def file(self, title: str) -> str:
        """Return the chart with its style, as a file."""
        return _file(title, self._frame.height, self._drawn())

    @property
    def _frame(self) -> Frame:
        return _FRAME._replace(left=10, top=0, height=_INTERVAL_ROW * len(self.rows) + 8 + _FRAME.bottom)

    def _drawn(self) -> Markup:
        frame = self._frame
        across = Axis.around([0.0, *(end for row in self.rows for end in (row.low, row.high))])
        zero = frame.x(across, 0.0)
        drawn = Markup('<g class="zero">{}</g>').format(line((zero, 0), (zero, frame.floor)))
        for number, row in enumerate(self.rows):
            y = number * _INTERVAL_ROW + 34.0
            low, mean, high = (frame.x(across, value) for value in (row.low, row.mean, row.high))
            drawn += Markup('<g class="row {}"><title>{}</title>{}{}{}<circle cx="{}" cy="{}" r="5"/></g>').format(
                _judged(row),
                visible(row.name),
                text(0, y - 14, shortened(row.name), "start"),
                text(frame.width, y - 14, _numbers(row), "end"),
                line((low, y), (high, y)),
                short(mean),
                short(y),
            )
        return frame.grid(across, None, self.x_title) + drawn


def bar_chart(title: str, bars: Sequence[tuple[str, float]], x_title: str, y_title: str) -> Markup:
    """Return a chart of bars in order, each with its label below, as a part of a page."""
    up = Axis.around([0.0, *(value for _, value in bars)])
    room = _FRAME.plot_width / max(1, len(bars))
    width = min(room - 2, _WIDEST_BAR)
    every = math.ceil(len(bars) / 10)
    drawn = _FRAME.grid(None, up, x_title, y_title)
    for number, (label, value) in enumerate(bars):
        middle, y = _FRAME.left + (number + 0.5) * room, _FRAME.y(up, value)
        drawn += Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"><title>{}: {:g}</title></rect>').format(
            *map(short, (middle - width / 2, y, width, _FRAME.floor - y)), visible(label), value
        )
        if number % every == 0:
            drawn += text(middle, _FRAME.floor + 18, label, "middle")
    return _part(title, _FRAME.height, drawn)


def thinned(points: Sequence[tuple[float, float]]) -> Points:
    """Return about 400 of the points, the last included: more cannot be told apart."""
    every = max(1, math.ceil(len(points) / _MOST_POINTS))
    return (*points[:-1:every], points[-1]) if points else ()


def shortened(name: str) -> str:
    """Return a name that leaves room for numbers beside it."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"


_Place = Callable[[tuple[float, float]], tuple[float, float]]
"""Maps a data point to its position in the drawing."""


def _series(number: int, series: Series, place: _Place) -> Markup:
    if not series.points:
        return Markup("")
    sparse = len(series.points) <= _MOST_MARKED
    ends = [
        (place((x, low)), place((x, high)))
        for (x, _), (low, high) in zip(series.points, series.bounds, strict=False)
        if math.isfinite(low) and math.isfinite(high)
    ]
    points = _places(series.points, place)
    parts = [
        *(_polyline("member", _places(member, place)) for member in series.members),
        *([line(*pair) for pair in ends] if sparse else [_band(ends)]),
        _polyline("dotted", _places(series.dotted, place)),
        _polyline("", points),
        *(
            Markup('<path transform="translate({} {})" d="{}"/>').format(short(x), short(y), _marker(number))
            for x, y in (points if sparse else points[:: math.ceil(len(points) / 8)])
        ),
    ]
    inside = Markup("").join(parts)
    return Markup('<g class="s{}"><title>{}</title>{}</g>').format(number % _HUES, visible(series.name), inside)


def _places(points: Points, place: _Place) -> list[tuple[float, float]]:
    return [place(point) for point in points if all(map(math.isfinite, point))]


def _polyline(kind: str, points: Sequence[tuple[float, float]]) -> Markup:
    if not points:
        return Markup("")
    named = Markup(' class="{}"').format(kind) if kind else ""
    return Markup('<polyline{} points="{}"/>').format(named, _joined(points))


def _band(ends: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> Markup:
    if not ends:
        return Markup("")
    lows, highs = zip(*ends, strict=True)
    return Markup('<polygon points="{}"/>').format(_joined([*lows, *reversed(highs)]))


def _joined(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{short(x)},{short(y)}" for x, y in points)


def _marker(number: int) -> str:
    return _MARKERS[number % len(_MARKERS)]


def _linked(name: str, links: Mapping[str, str]) -> Markup:
    shown = escape(visible(name))
    return Markup('<a href="{}">{}</a>').format(links[name], shown) if name in links else shown


def _judged(row: Interval) -> str:
    """Return the class of a row: gain, loss, or same where no difference is claimed."""
    if not row.claimed:
        return "same"
    return "gain" if row.mean > 0 else "loss"


def _numbers(row: Interval) -> str:
    signed = f"{row.mean:+.3f} [{row.low:+.3f}, {row.high:+.3f}]"
    return signed.replace("-", "\N{MINUS SIGN}")


def _part(title: str, height: float, drawn: Markup) -> Markup:
    return Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        visible(title), _FRAME.width, short(height), drawn
    )


def _file(title: str, height: float, drawn: Markup) -> str:
    style = Markup(_STYLE.read_text(encoding="utf-8"))
    size = Markup('viewBox="0 0 {0} {1}" width="{0}"').format(_FRAME.width, short(height))
    opening = Markup('<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{}" {}>')
    return opening.format(visible(title), size) + Markup("<style>{}</style>{}</svg>\n").format(style, drawn)
