"""Training curves: a thin line for each training seed of a stage, with their mean and its interval."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retroformer.markdown import table
from retroformer.stage_metrics import first_and_last

from ..measure.statistics import over_seeds
from .training import TrainedAdapter


class Curve(NamedTuple):
    """Metric that a stage records at each step or update."""

    panel: str
    name: str
    averaged: int
    """Number of first, and of last, values averaged in the table, since single batches are noisy."""


_IMITATION = Curve("Imitation: loss by step", "loss", 5)
_ON_PAIRS = Curve("On pairs: loss by step", "loss", 5)
_SCORE = Curve("Score, or live return, by update", "score", 2)
_DIVERGENCE = Curve("Divergence from SFT, in nats", "kl", 2)
_EPISODES = Curve(_SCORE.panel, "score", 20)
_PANELS = (_IMITATION.panel, _ON_PAIRS.panel, _SCORE.panel, _DIVERGENCE.panel)
_CURVES = {
    "warm": (_IMITATION,),
    "sft": (_IMITATION,),
    "reward": (_ON_PAIRS,),
    "dpo": (_ON_PAIRS,),
    "grpo": (_SCORE, _DIVERGENCE),
    "ppo": (_SCORE, _DIVERGENCE),
    "sac": (_EPISODES,),
}
CURVE_NOTE = (
    "Means over the training seeds with Student's 95% interval. Each seed counts with the mean of its first, and of "
    "its last, five steps (or two updates); windows of a short curve are smaller, so that no value counts in both. "
    "Scores are in standard deviations of the reward model's score, live returns are unscaled, and divergences are in "
    "nats per response."
)
_EPISODES_NOTE = " For SAC a value is the return of one episode, and the first and last 20 count."


def draw_training(trained: Sequence[TrainedAdapter], path: Path) -> None:
    """Write all curves as PNG, with a panel for each kind."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.2), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = dict(zip(_PANELS, figure.subplots(2, 2).flat, strict=True))
    for panel, axes in panels.items():
        axes.set_title(panel, loc="left", fontsize=10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    for number, (title, seeds) in enumerate(group_by_title(trained).items()):
        for curve in _CURVES[seeds[0].stage]:
            _draw(panels[curve.panel], [curve_values(adapter, curve) for adapter in seeds], f"C{number}", title)
    for axes in panels.values():
        if axes.lines:
            axes.legend(frameon=False, fontsize=7)
    figure.savefig(path)


def curve_table(trained: Sequence[TrainedAdapter]) -> str:
    """Render the start and end of each curve, over the training seeds."""
    rows = [
        [
            title,
            curve.name,
            str(len(seeds)),
            *_ends([curve_values(adapter, curve) for adapter in seeds], curve.averaged),
        ]
        for title, seeds in group_by_title(trained).items()
        for curve in _CURVES[seeds[0].stage]
    ]
    note = CURVE_NOTE + _EPISODES_NOTE * any(adapter.stage == "sac" for adapter in trained)
    return f"{table(['stage', 'curve', 'seeds', 'first', 'last'], rows)}\n\n{note}"


def group_by_title(trained: Sequence[TrainedAdapter]) -> Mapping[str, list[TrainedAdapter]]:
    """Group adapters of one stage, round and settings, which differ only in seed and data.

    If a stage was trained with several settings, the titles give the settings that differ.
    """
    stages: dict[str, list[TrainedAdapter]] = {}
    for adapter in trained:
        _, _, number = adapter.folder.name.partition("-")
        title = f"{adapter.title}, round {number}" if number.isdecimal() else adapter.title
        stages.setdefault(title, []).append(adapter)
    groups: dict[str, list[TrainedAdapter]] = {}
    for title, alike in stages.items():
        settings = [_settings(adapter) for adapter in alike]
        setting_names = dict.fromkeys(name for values in settings for name in values)
        names = [
            name for name in setting_names if any(values.get(name) != settings[0].get(name) for values in settings)
        ]
        for adapter, its_settings in zip(alike, settings, strict=True):
            full_title = ", ".join((title, *(f"{name} {its_settings.get(name)}" for name in names)))
            groups.setdefault(full_title, []).append(adapter)
    return groups


def _settings(adapter: TrainedAdapter) -> dict[str, Any]:
    """Return the config values on which the weights depend."""
    inputs: dict[str, Any] = adapter.metrics.inputs
    flat = {name: inputs.get(name) for name in ("base", "quantization", "dtype", "max_new_tokens")}
    return {**flat, **inputs.get("lora", {}), **inputs.get("optimizer", {})}


def curve_values(adapter: TrainedAdapter, curve: Curve) -> list[float]:
    """Return the curve of one adapter, a value for each step or update."""
    if curve.name == "loss":
        return list(adapter.metrics.losses)
    return [update[curve.name] for update in adapter.metrics.history]


def _ends(curves: Sequence[Sequence[float]], averaged: int) -> tuple[str, str]:
    """Return the means of the first and of the last values over the seeds, with intervals; dashes if one has no two."""
    ends = [first_and_last(values, averaged) for values in curves]
    if None in ends:
        return "-", "-"
    first, last = zip(*filter(None, ends), strict=True)
    return _mean(first), _mean(last)


def _mean(values_S: Sequence[float]) -> str:
    return str(over_seeds(values_S)) if len(values_S) > 1 else f"{values_S[0]:.3f}"


def _draw(axes: Any, curves: Sequence[Sequence[float]], color: str, title: str) -> None:
    if len(curves) == 1:
        axes.plot(curves[0], color=color, linewidth=1.4, label=title)
        return
    for values in curves:
        axes.plot(values, color=color, linewidth=0.6, alpha=0.35)
    # Stop at the shortest seed: beyond it the mean would cover fewer seeds.
    means = [over_seeds(values_S) for values_S in zip(*curves, strict=False)]
    axes.plot([mean.mean for mean in means], color=color, linewidth=1.6, label=f"{title}, mean of {len(curves)}")
    axes.fill_between(
        range(len(means)), [mean.low for mean in means], [mean.high for mean in means], color=color, alpha=0.12
    )
