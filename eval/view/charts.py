"""Charts as SVG within a page. Colours are classes of the stylesheet, so charts follow the dark mode."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 12, 40
_MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5l5 9h-10z",
    "M0 -5.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
    "M0 5l5 -9h-10z",
    "M-5 -2h3v-3h4v3h3v4h-3v3h-4v-3h-3z",
)
"""Shapes around (0, 0), so that a series is known by more than its colour."""
_MOST_MARKED = 30
"""Points of a series up to which each gets its shape."""
_MOST_SERIES = 8


class Series(NamedTuple):
    """A line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(title: str, series: Sequence[Series], x_title: str, y_title: str) -> Markup:
    """Return a chart of lines over one axis; at most eight, the further ones are left out."""
    series = [line for line in series if line.points][:_MOST_SERIES]
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    across, up = _Axis.around(xs), _Axis.around(ys)
    drawn = Markup("").join(_line(number, line, across, up) for number, line in enumerate(series))
    legend = Markup("").join(
        Markup('<li class="s{}"><svg viewBox="-7 -7 14 14" aria-hidden="true"><path d="{}"/></svg>{}</li>').format(
            number, _MARKERS[number % len(_MARKERS)], line.name
        )
        for number, line in enumerate(series)
    )
    return _figure(title, drawn, across, up, x_title, y_title) + Markup('<ul class="legend">{}</ul>').format(legend)


def bar_chart(title: str, bars: Sequence[tuple[str, float]], x_title: str, y_title: str) -> Markup:
    """Return a chart of bars in order, each with its label below."""
    up = _Axis.around([0.0, *(value for _, value in bars)])
    width = (_WIDTH - _LEFT - _RIGHT) / max(1, len(bars))
    every = math.ceil(len(bars) / 12)
    drawn = Markup("")
    for number, (label, value) in enumerate(bars):
        x, y = _LEFT + number * width, _y(up, value)
        drawn += Markup('<rect class="bar" x="{}" y="{}" width="{}" height="{}"><title>{}: {:g}</title></rect>').format(
            _short(x + 1), _short(y), _short(width - 2), _short(_HEIGHT - _BOTTOM - y), label, value
        )
        if number % every == 0:
            drawn += _text(x + width / 2, _HEIGHT - _BOTTOM + 15, label, "middle")
    return _figure(title, drawn, None, up, x_title, y_title)


class _Axis(NamedTuple):
    """Range of an axis, and the values that get a tick."""

    low: float
    high: float
    ticks: tuple[float, ...]

    @classmethod
    def around(cls, values: Sequence[float]) -> "_Axis":
        """Return an axis with about five round ticks, which covers finite values."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
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
        return (value - self.low) / (self.high - self.low)


def _x(axis: _Axis, value: float) -> float:
    return _LEFT + axis.share(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: _Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.share(value) * (_HEIGHT - _TOP - _BOTTOM)


def _line(number: int, line: Series, across: _Axis, up: _Axis) -> Markup:
    points = [(_x(across, x), _y(up, y)) for x, y in line.points if math.isfinite(x) and math.isfinite(y)]
    path = " ".join(f"{_short(x)},{_short(y)}" for x, y in points)
    marks = Markup("").join(
        Markup('<path transform="translate({} {})" d="{}"/>').format(
            _short(x), _short(y), _MARKERS[number % len(_MARKERS)]
        )
        for x, y in (points if len(points) <= _MOST_MARKED else points[:: math.ceil(len(points) / 8)])
    )
    return Markup('<g class="s{}"><title>{}</title><polyline points="{}"/>{}</g>').format(
        number, line.name, path, marks
    )


def _figure(title: str, drawn: Markup, across: _Axis | None, up: _Axis, x_title: str, y_title: str) -> Markup:
    grid = Markup("")
    for tick in up.ticks:
        y = _short(_y(up, tick))
        grid += Markup('<line x1="{}" x2="{}" y1="{}" y2="{}"/>').format(_LEFT, _WIDTH - _RIGHT, y, y)
        grid += _text(_LEFT - 6, _y(up, tick) + 4, f"{tick:g}", "end")
    for tick in across.ticks if across is not None else ():
        grid += _text(_x(across, tick) if across else 0, _HEIGHT - _BOTTOM + 15, f"{tick:g}", "middle")
    grid += _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, x_title, "middle")
    grid += Markup('<text transform="translate(12 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
        (_TOP + _HEIGHT - _BOTTOM) / 2, y_title
    )
    return Markup(
        '<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}"><g class="grid">{}</g>{}</svg>'
    ).format(title, _WIDTH, _HEIGHT, grid, drawn)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(_short(x), _short(y), anchor, text)


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
