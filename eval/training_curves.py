"""The curves of training: where a stage has several training seeds, a thin line each, their mean and its interval."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from eval.statistics import over_seeds
from eval.table import table
from eval.training import Trained


class Curve(NamedTuple):
    """What a stage writes down at each step or update."""

    panel: str
    name: str
    averaged: int
    """How many values at the beginning, and at the end, are one number in the table: single batches are noisy."""


_IMITATION = Curve("Imitation: loss by step", "loss", 5)
_ON_PAIRS = Curve("On pairs: loss by step", "loss", 5)
_SCORE = Curve("Score, or live return, by update", "score", 2)
_DIVERGENCE = Curve("Divergence from SFT, in nats", "kl", 2)
_PANELS = (_IMITATION, _ON_PAIRS, _SCORE, _DIVERGENCE)
_CURVES = {
    "warm": (_IMITATION,),
    "sft": (_IMITATION,),
    "reward": (_ON_PAIRS,),
    "dpo": (_ON_PAIRS,),
    "grpo": (_SCORE, _DIVERGENCE),
    "ppo": (_SCORE, _DIVERGENCE),
}
IN_WORDS = (
    "Means over the training seeds with Student's 95 % interval, each seed's number the mean of its first and of its "
    "last five steps (of an update: two). Scores are in standard deviations of the reward model's, live returns as "
    "they are; divergences are nats of a whole response."
)


def draw_training(trained: Sequence[Trained], path: Path) -> None:
    """Write all curves as PNG, a panel for each kind."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = dict(zip(_PANELS, figure.subplots(2, 2).flat, strict=True))
    for curve, axes in panels.items():
        axes.set_title(curve.panel, loc="left", fontsize=10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for number, (title, seeds) in enumerate(by_title(trained).items()):
        for curve in _CURVES[seeds[0].stage]:
            _draw(panels[curve], [values_of(one, curve) for one in seeds], f"C{number}", title)
    for axes in panels.values():
        if axes.lines:
            axes.legend(frameon=False, fontsize=7)
    figure.savefig(path)


def curve_table(trained: Sequence[Trained]) -> str:
    """Where each curve begins and where it ends, over the training seeds."""
    rows = [
        [title, curve.name, str(len(seeds)), *ends([values_of(one, curve) for one in seeds], curve.averaged)]
        for title, seeds in by_title(trained).items()
        for curve in _CURVES[seeds[0].stage]
    ]
    return f"{table(['stage', 'curve', 'seeds', 'first', 'last'], rows)}\n\n{IN_WORDS}"


def by_title(trained: Sequence[Trained]) -> Mapping[str, list[Trained]]:
    """Adapters that differ in their seed and data alone: of one stage and round, and of the same settings.

    Where a stage was trained with several settings, the titles say in what they differ.
    """
    stages: dict[str, list[Trained]] = {}
    for one in trained:
        _, _, number = one.folder.name.partition("-")
        stages.setdefault(f"{one.title}, round {number}" if number.isdecimal() else one.title, []).append(one)
    found: dict[str, list[Trained]] = {}
    for title, alike in stages.items():
        settings = [_settings(one) for one in alike]
        known = dict.fromkeys(name for one in settings for name in one)
        names = [name for name in known if any(one.get(name) != settings[0].get(name) for one in settings)]
        for one, its in zip(alike, settings, strict=True):
            found.setdefault(", ".join((title, *(f"{name} {its.get(name)}" for name in names))), []).append(one)
    return found


def _settings(one: Trained) -> dict[str, Any]:
    """What a page sets, as far as the weights depend on it."""
    inputs: dict[str, Any] = one.metrics.get("inputs", {})
    flat = {name: inputs.get(name) for name in ("base", "quantization", "dtype", "max_new_tokens")}
    return {**flat, **inputs.get("lora", {}), **inputs.get("optimizer", {})}


def values_of(one: Trained, curve: Curve) -> list[float]:
    """The curve of one adapter, a value for each step or update."""
    if curve.name == "loss":
        return list(one.metrics["losses"])
    return [update[curve.name] for update in one.metrics["history"]]


def ends(curves: Sequence[Sequence[float]], size: int) -> tuple[str, str]:
    """The mean of the first and of the last `size` values over the seeds, with their intervals."""
    return _mean([values[:size] for values in curves]), _mean([values[-size:] for values in curves])


def _mean(curves: Sequence[Sequence[float]]) -> str:
    means = [fmean(values) for values in curves]
    return str(over_seeds(means)) if len(means) > 1 else f"{means[0]:.3f}"


def _draw(axes: Any, curves: Sequence[Sequence[float]], color: str, title: str) -> None:
    if len(curves) == 1:
        axes.plot(curves[0], color=color, linewidth=1.4, label=title)
        return
    for values in curves:
        axes.plot(values, color=color, linewidth=0.6, alpha=0.35)
    # Where the shortest seed has ended, the mean would be one of others.
    known = [over_seeds(values_S) for values_S in zip(*curves, strict=False)]
    axes.plot([one.mean for one in known], color=color, linewidth=1.6, label=f"{title}, mean of {len(curves)}")
    axes.fill_between(
        range(len(known)), [one.low for one in known], [one.high for one in known], color=color, alpha=0.12
    )
