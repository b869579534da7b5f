"""Figures of the arms: share of tasks solved by each trial, and differences from the reference."""

from retroformer.experiment.config import Experiment

from ..measure.rates import Rates, comparison
from ..view.charts import Interval, IntervalChart, LineChart, Series
from .document import Figure

_OFFSET = 0.015
"""Horizontal offset between lines, as a share of the axis, so that their intervals do not overlap."""


def solved_figure(experiment: Experiment, rates: Rates) -> Figure:
    """Return the share solved by each trial, one line per arm. The legend is sorted by the share at the last trial.

    If tasks are unfinished, dotted lines and a second number give the shares with these counted as failures.
    """
    solid, *dotted = rates.views
    order = sorted(range(len(solid)), key=lambda index: -float(solid[index].solved_NT[-1].mean()))
    series = []
    for rank, index in enumerate(order):
        intervals = [
            rates.intervals.of(solid[index].solved_by(trial)) for trial, _ in enumerate(solid[index].solved_NT)
        ]
        offset = _OFFSET * (len(intervals) - 1) * (rank - (len(solid) - 1) / 2)
        x = [trial + 1 + (offset if trial else 0.0) for trial in range(len(intervals))]
        others = [other[index].solved_NT.mean(axis=1).tolist() for other in dotted]
        series.append(
            Series(
                name=solid[index].name,
                points=tuple((at, interval.mean) for at, interval in zip(x, intervals, strict=True)),
                bounds=tuple((interval.low, interval.high) for interval in intervals),
                dotted=tuple(zip(x, others[0], strict=True)) if others else (),
                note=f"{intervals[-1].mean:.2f}" + "".join(f" ({shares[-1]:.2f})" for shares in others),
            )
        )
    trials = len(solid[0].solved_NT)
    chart = LineChart(
        x_title="attempts allowed",
        y_title="share of held-out tasks solved",
        series=tuple(series),
        x_ticks=tuple(range(1, trials + 1)),
        y_ticks=(0.0, 0.25, 0.5, 0.75, 1.0),
    )
    return Figure(name="solved", caption=_caption(experiment, rates), chart=chart)


def _caption(experiment: Experiment, rates: Rates) -> str:
    name = experiment.environment.name
    own = [arm.name for arm in rates.all_tasks if not arm.shares_first]
    shared = f"trial 0 shared, except by {', '.join(own)}" if own else "trial 0 shared"
    shown = "the legend gives the share at the last trial"
    if not rates.finished_tasks:
        return f"{name}, {rates.tasks} held-out tasks, unfinished ones counted as failures; {shown}."
    dotted = f" (dotted, and in brackets: {rates.tasks}, unfinished as failures)" if rates.unfinished else ""
    return f"{name}, {rates.finished_tasks} held-out tasks{dotted}, {shared}; {shown}."


def difference_figure(rates: Rates, reference: str) -> Figure:
    """Return the difference of every other arm from the reference after the last trial, as in the headline."""
    arms = {arm.name: arm for arm in rates.views[0]}
    rows = []
    for name, arm in arms.items():
        if name != reference:
            compared = comparison(arm, arms[reference], rates.intervals)
            mean, low, high = compared.difference
            rows.append(Interval(name=name, mean=mean, low=low, high=high, claimed=compared.claimed))
    rows.sort(key=lambda row: -row.mean)
    caption = (
        f"Share of tasks solved by the last trial minus that of {reference}, paired by task, with 95% intervals. "
        "Filled: a difference is claimed, as in the headline; hollow: the data do not show one."
    )
    chart = IntervalChart(x_title="difference in the share of tasks solved", rows=tuple(rows))
    return Figure(name="differences", caption=caption, chart=chart)
