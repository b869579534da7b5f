"""Learning curve: share of tasks solved by each trial, one line per arm, with bootstrap intervals."""

from pathlib import Path

from ..measure.rates import Rates

_OFFSET = 0.03
"""Horizontal offset between lines, so that their intervals do not overlap."""


def draw_curve(rates: Rates, title: str, path: Path) -> None:
    """Write the figure as PNG. The legend is sorted by, and shows, the share solved by the last trial.

    If tasks are unfinished, dotted lines and a second number give the shares with these counted as failures.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    solid, *dotted = rates.views
    trials = len(solid[0].solved_NT)
    best_first = sorted(enumerate(solid), key=lambda indexed: -indexed[1].solved_NT[-1].mean())
    for rank, (index, arm) in enumerate(best_first):
        intervals = [rates.intervals.of(solved_T) for solved_T in arm.solved_NT]
        offset = _OFFSET * (rank - (len(solid) - 1) / 2)
        x = [trial + 1 + (offset if trial else 0.0) for trial in range(trials)]
        with_unfinished = [other[index].solved_NT.mean(axis=1) for other in dotted]
        axes.errorbar(
            x,
            [interval.mean for interval in intervals],
            yerr=[
                [interval.mean - interval.low for interval in intervals],
                [interval.high - interval.mean for interval in intervals],
            ],
            marker="osD^vPX*"[index % 8],
            color=f"C{index}",
            label=f"{arm.name}  {intervals[-1].mean:.2f}" + "".join(f" ({other[-1]:.2f})" for other in with_unfinished),
            linewidth=2,
            elinewidth=1,
            capsize=3,
        )
        for other in with_unfinished:
            axes.plot(x, other, color=f"C{index}", linewidth=1.2, linestyle=":")
    axes.set_xticks(list(range(1, trials + 1)))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("attempts allowed")
    axes.set_ylabel("share of held-out tasks solved")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, fontsize=10)
    figure.savefig(path)
