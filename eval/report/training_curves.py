"""Training curves: a thin line for each training seed of a stage, with their mean and its interval."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from retroformer.markdown import table
from retroformer.stage_metrics import first_and_last

from ..measure.statistics import over_seeds
from ..view.charts import LineChart, Points, Series, thinned
from .document import Figure
from .training import TrainedAdapter


class Curve(NamedTuple):
    """Metric that a stage records at each step or update."""

    panel: str
    """Name of the figure that shows it."""
    name: str
    averaged: int
    """Number of first, and of last, values averaged in the table, since single batches are noisy."""


_IMITATION = Curve("imitation", "loss", 5)
_ON_PAIRS = Curve("pairs", "loss", 5)
_SCORE = Curve("score", "score", 2)
_DIVERGENCE = Curve("divergence", "kl", 2)
_EPISODES = Curve("score", "score", 20)
_PANELS = {
    "imitation": ("Loss of imitation.", "step", "loss"),
    "pairs": ("Loss on pairs of better and worse advice.", "step", "loss"),
    "score": ("Score of the reward model, or live return.", "update", "score"),
    "divergence": ("Divergence from the SFT policy.", "update", "nats per response"),
}
"""Caption and axes of each figure."""
_SEEDS = " Thin: each training seed; thick: their mean with its interval."
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


def training_figures(trained: Sequence[TrainedAdapter]) -> list[Figure]:
    """Return a figure for each kind of curve that some stage recorded."""
    panels: dict[str, list[Series]] = {}
    for title, seeds in group_by_title(trained).items():
        for curve in _CURVES[seeds[0].stage]:
            line = _series(title, [curve_values(adapter, curve) for adapter in seeds])
            if line.points:
                panels.setdefault(curve.panel, []).append(line)
    return [
        Figure(
            name=name,
            caption=caption + _SEEDS * any(line.members for line in panels[name]),
            chart=LineChart(x_title=x_title, y_title=y_title, series=tuple(panels[name])),
        )
        for name, (caption, x_title, y_title) in _PANELS.items()
        if name in panels
    ]


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
    shown = table(["stage", "curve", "seeds", "first", "last"], rows, "Where each training curve begins and ends.")
    return f"{shown}\n\n{note}"


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


def _series(title: str, curves: Sequence[Sequence[float]]) -> Series:
    """Return one line of a figure: of one seed, or the mean of several with its interval and a thin line for each."""
    lines = tuple(map(_points, curves))
    if len(lines) == 1:
        return Series(name=title, points=lines[0])
    # Stop at the shortest seed: beyond it the mean would cover fewer seeds.
    steps = enumerate(zip(*curves, strict=False), start=1)
    means = [(float(step), over_seeds(values_S)) for step, values_S in steps if all(map(isfinite, values_S))]
    return Series(
        name=title,
        note=f"(mean of {len(lines)})",
        points=thinned([(step, mean.mean) for step, mean in means]),
        bounds=thinned([(mean.low, mean.high) for _, mean in means]),
        members=lines,
    )


def _points(values: Sequence[float]) -> Points:
    return thinned([(float(step), value) for step, value in enumerate(values, start=1) if isfinite(value)])
