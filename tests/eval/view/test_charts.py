"""Tests of the charts: where points and intervals stand, for any numbers and names, in a page and as a file."""

import math
import re
from xml.etree import ElementTree

import pytest

from eval.view import charts
from eval.view.charts import Axis
from retroformer.files.document import IntervalChart, IntervalRow, LineChart, Series

ODD = '<b>&"\x1b[2J\u202e'


def chart(*series: Series) -> LineChart:
    return LineChart(x_title="step", y_title="loss", series=series)


def places(points: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in points.split())]


def test_a_line_spans_the_plot() -> None:
    svg = charts.svg(chart(Series(name="a <b>", points=((0, 0.0), (1, 10.0))), Series(name="empty", points=())), "Loss")
    (points,) = re.findall(r'polyline points="([^"]+)"', svg)
    # From the left edge at 48 to the right one at 560 - 12, from the floor at 300 - 44 to the top at 30.
    assert places(points) == [(48, 256), (548, 30)]
    assert "<title>a &lt;b&gt;</title>" in svg


def test_a_few_points_have_bars_and_many_have_a_band() -> None:
    def drawn(count: int) -> str:
        bounds = tuple((0.0, 4.0) for _ in range(count))
        points = tuple((float(x), 2.0) for x in range(count))
        svg = charts.svg(chart(Series(name="mean", points=points, bounds=bounds)), "Loss")
        return svg.partition('class="s0"')[2]

    assert drawn(2).count("<line ") == 2
    assert '<line x1="48" y1="256" x2="48" y2="30"/>' in drawn(2)
    (band,) = re.findall(r'polygon points="([^"]+)"', drawn(40))
    assert len(places(band)) == 80
    assert places(band)[0] == (48, 256)
    assert places(band)[-1] == (48, 30)


def test_members_are_thin_and_another_count_is_dotted() -> None:
    line = ((0.0, 0.0), (1.0, 1.0))
    svg = charts.svg(chart(Series(name="mean", points=line, members=(line, line), dotted=line)), "Loss")
    assert svg.count('class="member"') == 2
    assert svg.count('class="dotted"') == 1


def test_more_series_than_hues_differ_by_their_marks() -> None:
    legend = charts.legend(chart(*(Series(name=str(number), points=()) for number in range(56))))
    assert len(set(re.findall(r'<li class="(s\d)">.*?d="([^"]+)"', legend))) == 56


def test_an_interval_stands_around_zero_and_is_filled_where_it_is_claimed() -> None:
    rows = (
        IntervalRow(name="better", mean=0.5, low=0.0, high=1.0, claimed=True),
        IntervalRow(name="worse", mean=-0.5, low=-1.0, high=0.0, claimed=True),
        IntervalRow(name="same", mean=0.5, low=-1.0, high=1.0, claimed=False),
    )
    svg = charts.svg(IntervalChart(x_title="difference", rows=rows), "Differences")
    assert re.findall(r'class="row (\w+)"', svg) == ["gain", "loss", "same"]
    # Zero is in the middle between 10 and 560 - 12.
    assert '<g class="zero"><line x1="279" ' in svg
    assert re.findall(r'circle cx="([\d.]+)"', svg) == ["413.5", "144.5", "413.5"]
    assert "\N{MINUS SIGN}0.500 [\N{MINUS SIGN}1.000, +0.000]" in svg


@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [1e-300, 1e300], [math.nan, 1.0], [math.inf, -1.0]])
def test_a_chart_of_any_numbers_is_drawn(values: list[float]) -> None:
    points = tuple((float(number), value) for number, value in enumerate(values))
    bounds = tuple((value, value) for value in values)
    svg = charts.svg(chart(Series(name="line", points=points, bounds=bounds)), "Any")
    assert not re.findall(r'(?:points|[xy][12])="[^"]*(?:nan|inf)', svg)
    bars = [(str(value), value) for value in values if math.isfinite(value)]
    assert "<svg" in charts.bar_chart("Any", bars, "x", "y")


def test_a_file_is_an_image_of_its_own_whatever_its_names() -> None:
    lines = chart(Series(name=ODD, points=((0.0, 1.0),), note=ODD))
    intervals = IntervalChart(x_title=ODD, rows=(IntervalRow(name=ODD, mean=0, low=0, high=0, claimed=False),))
    for file in (charts.file(lines, ODD), charts.file(intervals, ODD)):
        root = ElementTree.fromstring(file)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "<b>" in "".join(root.itertext())
        assert "\x1b" not in file
        assert "\u202e" not in file


def test_ticks_are_round() -> None:
    assert Axis.around([0.03, 0.97]).ticks == pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1.0))
    assert Axis.around([1, 3]).ticks == (1, 2, 3)


def test_long_curves_are_thinned_out() -> None:
    points = [(float(step), 0.0) for step in range(1000)]
    assert len(charts.thin(points)) == 334
    assert (charts.thin(points)[0], charts.thin(points)[-1]) == (points[0], points[-1])
    assert charts.thin([]) == ()
