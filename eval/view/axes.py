"""Axes of a chart: round ticks, and positions of values in the drawing."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from retroformer.files.text import visible


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

    def grid(self, across: Axis | None, up: Axis | None, x_title: str, y_title: str = "") -> Markup:
        """Return the lines, ticks and titles of the axes; without an axis, no ticks."""
        drawn = Markup("")
        if up is not None:
            for tick in up.ticks:
                y = self.y(up, tick)
                drawn += line((self.left, y), (self.width - self.right, y))
                drawn += text(self.left - 6, y + 4, label(tick), "end")
        if across is not None:
            for tick in across.ticks:
                drawn += text(self.x(across, tick), self.floor + 18, label(tick), "middle")
        drawn += text(self.left + self.plot_width / 2, self.height - 6, x_title, "middle")
        return Markup('<g class="grid">{}</g>').format(drawn + text(0, 14, y_title, "start") if y_title else drawn)


def line(start: tuple[float, float], end: tuple[float, float]) -> Markup:
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}"/>').format(*map(short, (*start, *end)))


def label(value: float) -> str:
    """Return the text of a tick."""
    return f"{value:g}".replace("-", "\N{MINUS SIGN}")


def text(x: float, y: float, content: str, anchor: str) -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(short(x), short(y), anchor, visible(content))


def short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
