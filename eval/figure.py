"""The learning curve: share of tasks solved by each trial, one line an arm, with bootstrap bands."""

from collections.abc import Sequence
from pathlib import Path

from eval.outcome import ArmOutcome
from eval.statistics import bootstrap


def draw_curve(outcomes: Sequence[ArmOutcome], title: str, seed: int, path: Path) -> None:
    """Write the picture as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    markers = "osD^vPX*"
    for index, arm in enumerate(outcomes):
        intervals = [bootstrap(solved_T, seed) for solved_T in arm.solved_NT]
        trials = range(1, len(intervals) + 1)
        colour = f"C{index}"
        axes.plot(
            trials,
            [one.mean for one in intervals],
            marker=markers[index % 8],
            color=colour,
            label=arm.name,
            linewidth=2,
        )
        axes.fill_between(
            trials,
            [one.low for one in intervals],
            [one.high for one in intervals],
            color=colour,
            alpha=0.10,
            linewidth=0,
        )
    axes.set_xticks(list(range(1, len(outcomes[0].solved_NT) + 1)))
    axes.set_ylim(0, 1)
    axes.set_xlabel("attempts allowed")
    axes.set_ylabel("share of held-out tasks solved")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(path)
