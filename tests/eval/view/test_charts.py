"""Tests of the charts: where points and intervals stand, for any numbers and names, in a page and as a file."""

import math
import re
from itertools import pairwise
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
    assert "<title>a &lt;b&gt;: 10</title>" in svg, "a marker gives its value under the pointer"


def test_bounds_are_bars_at_given_ticks_and_a_band_on_a_continuous_axis() -> None:
    def drawn(count: int, ticks: tuple[float, ...] = ()) -> str:
        bounds = tuple((0.0, 4.0) for _ in range(count))
        points = tuple((float(x), 2.0) for x in range(count))
        mean = chart(Series(name="mean", points=points, bounds=bounds)).model_copy(update={"x_ticks": ticks})
        return charts.svg(mean, "Loss").partition('class="s0"')[2]

    assert drawn(2, (0, 1)).count("<line ") == 2
    assert '<line x1="48" y1="256" x2="48" y2="30"/>' in drawn(2, (0, 1))
    assert drawn(1).count("<line ") == 1, "a band of one point could not be seen"
    (band,) = re.findall(r'polygon points="([^"]+)"', drawn(2))
    assert len(places(band)) == 4
    assert places(band)[0] == (48, 256)
    assert places(band)[-1] == (48, 30)


def test_members_are_thin() -> None:
    line = ((0.0, 0.0), (1.0, 1.0))
    svg = charts.svg(chart(Series(name="mean", points=line, members=(line, line))), "Loss")
    assert svg.count('class="member"') == 2


def test_series_differ_by_their_marks_and_the_first_shares_its_hue_with_no_other() -> None:
    legend = charts.legend(chart(*(Series(name=str(number), points=()) for number in range(50))), {})
    marks = re.findall(r'<li class="s(\d)">.*?d="([^"]+)"', legend)
    assert len(set(marks)) == 50
    assert [hue for hue, _ in marks].count("0") == 1


def test_the_names_of_a_file_stand_beside_the_ends_of_their_lines() -> None:
    ends = {"oracle": 1.0, "rule": 0.99, "table": 0.985, "trained": 0.98, "placebo": 0.6, "alone": 0.5, "least": 0.49}
    lines = [Series(name=name, points=((0.0, 0.0), (1.0, end)), note=f"{end:.2f}") for name, end in ends.items()]
    root = ElementTree.fromstring(charts.file(chart(*lines), "Solved"))
    named = {str(element.text): element for element in root.iter("{http://www.w3.org/2000/svg}text")}
    heights = [float(named[f"{name} {end:.2f}"].attrib["y"]) for name, end in ends.items()]
    assert all(below - above >= 15.9 for above, below in pairwise(heights))
    assert float(root.attrib["viewBox"].split()[3]) == 300, "the names need no room below the chart"
    # 256 is the floor of the plot.
    assert heights[-1] - 4 <= 256


def test_an_interval_stands_around_zero_and_is_filled_where_it_is_claimed() -> None:
    rows = (
        IntervalRow(name="better", mean=0.5, low=0.0, high=1.0, claimed=True),
        IntervalRow(name="worse", mean=-0.5, low=-1.0, high=0.0, claimed=True),
        IntervalRow(name="same", mean=0.5, low=-1.0, high=1.0, claimed=False),
    )
    svg = charts.svg(IntervalChart(x_title="difference", rows=rows), "Differences")
    assert re.findall(r'class="row (\w+)"', svg) == ["gain", "loss", "same"]
    # Zero is in the middle between 10 and 560 - 12, and its line leaves the names free.
    zero = re.findall(r'<g class="zero"><line x1="279" y1="([\d.]+)" x2="279" y2="([\d.]+)"', svg)
    names = re.findall(r'<text x="0" y="([\d.]+)"', svg)
    assert len(zero) == len(names) == 3
    for (top, _), name in zip(zero, names, strict=True):
        assert float(top) > float(name) + 3
    assert re.findall(r'circle cx="([\d.]+)"', svg) == ["413.5", "144.5", "413.5"]
    assert "\N{MINUS SIGN}0.500 [\N{MINUS SIGN}1.000, +0.000]" in svg


@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [1e-300, 1e300], [math.nan, 1.0], [math.inf, -1.0]])
def test_a_chart_of_any_numbers_is_drawn(values: list[float]) -> None:
    points = tuple((float(number), value) for number, value in enumerate(values))
    bounds = tuple((value, value) for value in values)
    svg = charts.svg(chart(Series(name="line", points=points, bounds=bounds)), "Any")
    assert not re.findall(r'(?:points|[xy][12])="[^"]*(?:nan|inf)', svg)
    assert (
        ElementTree.fromstring(charts.file(chart(Series(name="line", points=points, bounds=bounds)), "Any")) is not None
    )


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
