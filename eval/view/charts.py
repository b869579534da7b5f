"""Charts as SVG, within a page or as files. Colours are classes of a stylesheet, so charts follow the dark mode."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from retroformer.files.document import IntervalChart, LineChart, Points, Series
from retroformer.files.text import visible

from .rendering import link_to


class Axis(NamedTuple):
    """Range of an axis, and the values that get a tick."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, values: Sequence[float], ticks: Sequence[float] = ()) -> "Axis":
        """Return an axis that covers finite values, with these ticks or else about five round ones."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        if ticks:
            return cls(min(low, *ticks), max(high, *ticks), tuple(ticks))
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = low - 0.5, high + 0.5
        rough = (high - low) / 5
        size = 10.0 ** math.floor(math.log10(rough))
        step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
        if all(value == int(value) for value in finite):
            step = max(step, 1.0)
        first, last = math.floor(low / step), math.ceil(high / step)
        return cls(first * step, last * step, tuple(number * step for number in range(first, last + 1)))

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5


class Frame(NamedTuple):
    """Size of a drawing and of the margins around its plot, in the drawing's units."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    @property
    def plot_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def floor(self) -> float:
        """Lower edge of the plot."""
        return self.height - self.bottom

    def x(self, axis: Axis, value: float) -> float:
        return self.left + axis.share(value) * self.plot_width

    def y(self, axis: Axis, value: float) -> float:
        return self.floor - axis.share(value) * (self.floor - self.top)

    def grid(self, across: Axis, up: Axis | None, x_title: str, y_title: str = "") -> Markup:
        """Return the lines, ticks and titles of the axes; without an axis upwards, no lines."""
        drawn = Markup("")
        if up is not None:
            for tick in up.ticks:
                y = self.y(up, tick)
                drawn += line((self.left, y), (self.width - self.right, y))
                drawn += text(self.left - 6, y + 4, label(tick), "end")
        for tick in across.ticks:
            drawn += text(self.x(across, tick), self.floor + 18, label(tick), "middle")
        drawn += text(self.left + self.plot_width / 2, self.height - 6, x_title, "middle")
        return Markup('<g class="grid">{}</g>').format(drawn + text(0, 14, y_title, "start") if y_title else drawn)


def line(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}"/>').format(*map(short, (*start, *end)))


def label(value: float) -> str:
    """Return the text of a tick."""
    return f"{value:g}".replace("-", _MINUS)


def text(x: float, y: float, content: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(short(x), short(y), anchor, visible(content))


def short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


_MINUS = "\N{MINUS SIGN}"
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
"""Shapes around (0, 0), so that a series is known by more than its colour. With the hues they make 50 pairs."""
_HUES = 7
"""Hues that series share. The first series, the reference of a report, has another of its own."""
_MOST_MARKED = 30
"""Longer series get eight markers instead of one per point."""
_MOST_POINTS = 400
_LABEL_ROW = 16
_CHARACTER = 6.7
"""Mean width of a character of a label."""
_INTERVAL_ROW = 44
_LONGEST_NAME = 34
"""Longest name that still fits beside its numbers on a narrow screen."""
_STYLE = Path(__file__).parent / "static" / "figures.css"


def svg(chart: LineChart | IntervalChart, title: str, links: Mapping[str, str] | None = None) -> Markup:
    """Return a chart as a part of a page; the rows of an interval chart link to these addresses by their names."""
    height, drawn = _lines(chart) if isinstance(chart, LineChart) else _intervals(chart, links or {})
    # The links within an image are lost on those who hear it.
    role = "group" if isinstance(chart, IntervalChart) and any((links or {}).values()) else "img"
    return Markup('<svg class="chart" role="{}" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        role, visible(title), _FRAME.width, short(height), drawn
    )


def legend(chart: LineChart | IntervalChart, links: Mapping[str, str]) -> Markup:
    """Return the list of the lines with their marks, the highest last value first, for a page; nothing for intervals.

    Names with a link are linked.
    """
    if isinstance(chart, IntervalChart):
        return Markup("")
    drawn = '<li class="s{}"><svg viewBox="-7 -7 14 14" aria-hidden="true"><path d="{}"/></svg>{}{}</li>'
    order = sorted(enumerate(chart.series), key=lambda entry: -entry[1].points[-1][1] if entry[1].points else 0.0)
    entries = [
        Markup(drawn).format(
            _hue(number),
            _marker(number),
            link_to(series.name, links.get(series.name, "")),
            f" {series.note}".rstrip(),
        )
        for number, series in order
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(entries))


def file(chart: LineChart | IntervalChart, title: str) -> str:
    """Return a chart with its style as a file; lines have their names at their ends."""
    height, drawn = _lines(chart) if isinstance(chart, LineChart) else _intervals(chart, {})
    width = _FRAME.width
    if isinstance(chart, LineChart):
        longest = max((len(f"{series.name} {series.note}") for series in chart.series), default=0)
        width += 20 + _CHARACTER * longest
        height = max(height, _FRAME.top + _LABEL_ROW * len(chart.series) + 10)
        drawn += _labels(chart)
    style = Markup(_STYLE.read_text(encoding="utf-8"))
    size = Markup('viewBox="0 0 {0} {1}" width="{0}"').format(short(width), short(height))
    opening = Markup('<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" aria-label="{}" {}>')
    return opening.format(visible(title), size) + Markup("<style>{}</style>{}</svg>\n").format(style, drawn)


def _labels(chart: LineChart) -> Markup:
    """Return the names of the lines to the right of the plot, each as near to the end of its line as others allow."""
    place = _places_of(chart)
    ends = [(number, place(series.points[-1])) for number, series in enumerate(chart.series) if series.points]
    ends.sort(key=lambda end: end[1][1])
    heights = list[float]()
    for _, (_, y) in ends:
        heights.append(max(y, heights[-1] + _LABEL_ROW) if heights else y)
    lowest = max(_FRAME.floor, _FRAME.top + _LABEL_ROW * (len(ends) - 1))
    start, drawn = _FRAME.width + 8, Markup("")
    for place_from_below, ((number, end), y) in enumerate(zip(reversed(ends), reversed(heights), strict=True)):
        height, series = min(y, lowest - place_from_below * _LABEL_ROW), chart.series[number]
        drawn += Markup('<g class="s{}">{}<path transform="translate({} {})" d="{}"/></g>{}').format(
            _hue(number),
            line(end, (start - 6, height)),
            start,
            short(height),
            _marker(number),
            text(start + 9, height + 4, f"{series.name} {series.note}".rstrip(), "start"),
        )
    return drawn


def _places_of(chart: LineChart) -> "_Place":
    across, up = _axes(chart)
    return lambda point: (_FRAME.x(across, point[0]), _FRAME.y(up, point[1]))


def _axes(chart: LineChart) -> tuple[Axis, Axis]:
    lines = [part for series in chart.series for part in (series.points, *series.members)]
    ys = [y for part in lines for _, y in part] + [
        bound for series in chart.series for pair in series.bounds for bound in pair
    ]
    return Axis.around([x for part in lines for x, _ in part], chart.x_ticks), Axis.around(ys, chart.y_ticks)


def _lines(chart: LineChart) -> tuple[float, Markup]:
    place = _places_of(chart)
    bars = bool(chart.x_ticks)
    drawn = Markup("").join(_series(number, series, place, bars) for number, series in enumerate(chart.series))
    return _FRAME.height, _FRAME.grid(*_axes(chart), chart.x_title, chart.y_title) + drawn


def _intervals(chart: IntervalChart, links: Mapping[str, str]) -> tuple[float, Markup]:
    frame = _FRAME._replace(left=10, top=0, height=_INTERVAL_ROW * len(chart.rows) + 8 + _FRAME.bottom)
    across = Axis.around([0.0, *(end for row in chart.rows for end in (row.low, row.high))])
    zero, drawn = frame.x(across, 0.0), Markup("")
    for number, row in enumerate(chart.rows):
        # The line at zero leaves room for the names, which stand above their intervals.
        y = number * _INTERVAL_ROW + 34.0
        drawn += Markup('<g class="zero">{}</g>').format(line((zero, y - 10), (zero, y + 14)))
        name = row.name if len(row.name) <= _LONGEST_NAME else f"{row.name[: _LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
        low, mean, high = (frame.x(across, value) for value in (row.low, row.mean, row.high))
        drawn += Markup('<g class="row {}"><title>{}</title>{}{}{}<circle cx="{}" cy="{}" r="5"/></g>').format(
            "same" if not row.claimed else "gain" if row.mean > 0 else "loss",
            visible(row.name),
            link_to(text(0, y - 14, name, "start"), links.get(row.name, "")),
            text(frame.width, y - 14, f"{row.mean:+.3f} [{row.low:+.3f}, {row.high:+.3f}]".replace("-", _MINUS), "end"),
            line((low, y), (high, y)),
            short(mean),
            short(y),
        )
    return frame.height, frame.grid(across, None, chart.x_title) + drawn


def thin(points: Sequence[tuple[float, float]]) -> Points:
    """Return about 400 of the points, the last included: more cannot be told apart."""
    every = max(1, math.ceil(len(points) / _MOST_POINTS))
    return (*points[:-1:every], points[-1]) if points else ()


_Place = Callable[[tuple[float, float]], tuple[float, float]]
"""Function from a data point to its position in the drawing."""


def _series(number: int, series: Series, place: _Place, bars: bool) -> Markup:
    if not series.points:
        return Markup("")
    sparse = len(series.points) <= _MOST_MARKED
    ends = [
        (place((x, low)), place((x, high)))
        for (x, _), (low, high) in zip(series.points, series.bounds, strict=False)
        if math.isfinite(low) and math.isfinite(high)
    ]
    points = tuple(point for point in series.points if all(map(math.isfinite, point)))
    parts = [
        *(_polyline("member", _places(member, place)) for member in series.members),
        *([line(*pair) for pair in ends] if bars or len(ends) == 1 else _band(ends)),
        _polyline("", _places(points, place)),
        *(
            Markup('<path transform="translate({} {})" d="{}"><title>{}: {:.3g}</title></path>').format(
                *map(short, place(point)), _marker(number), visible(series.name), point[1]
            )
            for point in (points if sparse else points[:: math.ceil(len(points) / 8)])
        ),
    ]
    inside = Markup("").join(parts)
    return Markup('<g class="s{}"><title>{}</title>{}</g>').format(_hue(number), visible(series.name), inside)


def _places(points: Points, place: _Place) -> list[tuple[float, float]]:
    return [place(point) for point in points if all(map(math.isfinite, point))]


def _polyline(kind: str, points: Sequence[tuple[float, float]]) -> Markup:
    if not points:
        return Markup("")
    named = Markup(' class="{}"').format(kind) if kind else ""
    return Markup('<polyline{} points="{}"/>').format(named, _svg_points(points))


def _band(ends: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> list[Markup]:
    outline = [*(low for low, _ in ends), *(high for _, high in reversed(ends))]
    return [Markup('<polygon points="{}"/>').format(_svg_points(outline))] if ends else []


def _svg_points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{short(x)},{short(y)}" for x, y in points)


def _marker(number: int) -> str:
    # Series of one hue differ in their shapes.
    return _MARKERS[(number + max(0, number - 1) // _HUES) % len(_MARKERS)]


def _hue(number: int) -> int:
    return 1 + (number - 1) % _HUES if number else 0
