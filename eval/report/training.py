"""Chapter on how the models were trained: curves and metrics that each training stage wrote, seed by seed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import best_of
from retroformer.files import document as doc
from retroformer.run.adapter_names import FOLDER_NAME
from retroformer.run.adapters import reward_beside, reward_folder, served_folder
from retroformer.run.stage_metrics import METRICS, StageMetrics, first_and_last, read_metrics

from ..measure.statistics import over_seeds
from ..view.charts import thin
from .report_input import ReportInput, interval_cell

_STAGES = {
    "warm": "warm start",
    "sft": "SFT",
    "reward": "reward model",
    "dpo": "DPO",
    "grpo": "GRPO",
    "ppo": "PPO",
    "sac": "SAC of the actor",
}
_GRPO_ON_RATINGS: Mapping[str | None, str] = {"live": "live returns", "stored": "GRPO on stored ratings"}
"""Titles of GRPO whose rewards were ratings instead of a model's scores, by their source."""
_SAMPLES = {"samples": "texts", "pairs": "pairs", "prompts": "prompts", "env_steps": "steps"}
_AUDIT_MEASURES = {
    "accuracy in training": "train_accuracy",
    "held-out pairs": "held_out_pairs",
    "held-out accuracy": "held_out_accuracy",
    "of equally long pairs": "held_out_equal_length_accuracy",
    "longer wins": "held_out_longer_wins",
    "majority": "held_out_majority",
    "correlation with rating": "held_out_correlation",
    "with length": "held_out_length_correlation",
    "with length, in pairs": "held_out_length_correlation_within_pairs",
    "tasks read by its start": "held_out_tasks_read_by_start",
}
_AUDIT_NOTE = (
    "Measured on pairs of held-out tasks, with Wilson's 95% intervals. ",
    doc.emphasis("Longer wins"),
    " and ",
    doc.emphasis("majority"),
    " are accuracies of rules that ignore the failure: prefer the longer text; prefer the text that won more often "
    "than it lost in training. On pairs of equally many tokens, length says nothing. "
    "Correlations are Pearson's, of the score with the realised rating and with the number of tokens of the "
    "reflection. The last column is the number of held-out tasks on which the adapter that training started from was "
    "trained: it has read their failures, so the accuracy is optimistic.",
)
_TEST_NOTE = (
    "Whether the accuracy above is more than luck. Each p-value is of an exact one-sided test: of the pairs in order "
    "against a coin, and of the pairs on which reward model and ",
    doc.emphasis("longer wins"),
    " differ (a sign test). The power is the chance that the first test, at the 5% level, recognises a true accuracy "
    "of 65%. A p-value above .05 does not show that a reward model is useless, least of all at low power. PPO and GRPO "
    "start from any reward model that orders more than half of at least five pairs correctly.",
)


class Panel(NamedTuple):
    """Figure of a metric that stages record at each step or update."""

    stages: tuple[str, ...]
    caption: str
    x_title: str
    y_title: str
    measure: str
    averaged: int
    """Number of first, and of last, values averaged in the table, since single batches are noisy."""

    def values(self, adapter: "TrainedAdapter") -> list[float]:
        """Return the curve of one adapter, a value for each step or update."""
        metrics = adapter.metrics
        values = metrics.losses if self.measure == "loss" else [update.get(self.measure) for update in metrics.history]
        return [value for value in values if isinstance(value, int | float)]


_PANELS = {
    "imitation": Panel(("warm", "sft"), "Loss of imitation.", "step", "loss", "loss", 5),
    "pairs": Panel(("reward", "dpo"), "Loss on pairs of better and worse advice.", "step", "loss", "loss", 5),
    "score": Panel(("grpo", "ppo", "sac"), "Score of the reward model, or live return.", "update", "score", "score", 2),
    "divergence": Panel(("grpo", "ppo"), "Divergence from the SFT policy.", "update", "nats per response", "kl", 2),
}
_SEEDS_CAPTION = " Thin: each training seed; thick: their mean with its interval."
_EPISODES = 20
"""Number of SAC's values that are averaged: each is the return of one episode."""
_CURVE_NOTE = (
    "Means over the training seeds with Student's 95% interval. Each seed counts with the mean of its first, and of "
    "its last, five steps (or two updates); windows of a short curve are smaller, so that no value counts in both. "
    "Scores are in standard deviations of the reward model's score, live returns are unscaled, and divergences are in "
    "nats per response."
)
_EPISODES_NOTE = " For SAC a value is the return of one episode, and the first and last 20 count."


class TrainedAdapter(NamedTuple):
    folder: Path
    metrics: StageMetrics

    @property
    def stage(self) -> str:
        return self.metrics.stage

    @property
    def title(self) -> str:
        """Name of the stage; of GRPO on ratings, one that says where they came from."""
        return _GRPO_ON_RATINGS.get(self.reward_source, _STAGES[self.stage])

    @property
    def uses_reward_model(self) -> bool:
        """True if a reward model gave the rewards: always for PPO, for GRPO unless its rewards were ratings."""
        return self.stage == "ppo" or self.reward_source == "model"

    @property
    def reward_source(self) -> str | None:
        """Source of GRPO's rewards in its config: `model`, `live` or `stored`."""
        return self.metrics.inputs.get("optimizer", {}).get("reward") if self.stage == "grpo" else None

    def cell(self, after: str = "") -> doc.Cell:
        """Return the name of its folder, whose metrics the numbers beside it come from."""
        return doc.Cell(words=(doc.code(str(self.folder)), after), files=(str(self.folder / METRICS),))


def training(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield the curves, costs and audits of the report's models, if a stage trained any."""
    if trained := trained_adapters(evaluation.experiment, evaluation.models):
        parts: list[doc.Part | doc.Words] = [*training_figures(trained), *curve_table(trained), training_table(trained)]
        yield doc.chapter("How the models were trained", *parts, *reward_audit(trained))


def trained_adapters(experiment: Experiment, models: Sequence[str]) -> list[TrainedAdapter]:
    """Return the adapters of a report's models and the reward models that trained them or choose answers, by stage."""
    judged = {name: chosen.model for name in models if (chosen := best_of(name))}
    policies = adapters_in([served_folder(experiment, judged.get(name, name)) for name in models])
    rewards = [reward_beside(adapter.folder) for adapter in policies if adapter.uses_reward_model]
    rewards += [reward_folder(experiment, model) for model in judged.values()]
    unique: dict[Any, TrainedAdapter] = {}
    for adapter in (*policies, *adapters_in(rewards)):
        # A copy in another run is the same adapter.
        unique.setdefault(adapter.metrics.adapter_sha256 or adapter.folder, adapter)
    return sort_by_stage(unique.values())


def sort_by_stage(adapters: Iterable[TrainedAdapter]) -> list[TrainedAdapter]:
    return sorted(adapters, key=lambda adapter: (list(_STAGES).index(adapter.stage), str(adapter.folder)))


def adapters_in(folders: Sequence[Path]) -> list[TrainedAdapter]:
    """Read the adapters of those folders in which a training stage wrote metrics."""
    written = [folder for folder in folders if (folder / METRICS).is_file()]
    adapters = [TrainedAdapter(folder, read_metrics(folder)) for folder in written]
    return [adapter for adapter in adapters if adapter.stage in _STAGES]


def training_figures(trained: Sequence[TrainedAdapter]) -> Iterator[doc.Figure]:
    """Yield a figure for each kind of curve that some stage recorded: a thin line for each seed, and their mean."""
    groups = group_by_title(trained)
    for name, panel in _PANELS.items():
        drawn = {title: seeds for title, seeds in groups.items() if seeds[0].stage in panel.stages}
        lines = [_series(title, list(map(panel.values, seeds))) for title, seeds in drawn.items()]
        if series := tuple(line for line in lines if line.points):
            caption = panel.caption + _SEEDS_CAPTION * any(line.members for line in series)
            chart = doc.LineChart(x_title=panel.x_title, y_title=panel.y_title, series=series)
            yield doc.Figure(name=name, caption=caption, chart=chart)


def curve_table(trained: Sequence[TrainedAdapter]) -> tuple[doc.Table, doc.Words]:
    """Return the start and end of each curve, over the training seeds, and what they are."""
    rows: list[doc.Row] = [
        {
            "stage": doc.Cell(words=title, files=tuple(str(adapter.folder / METRICS) for adapter in seeds)),
            "curve": panel.measure,
            "seeds": len(seeds),
            **_ends(seeds, panel),
        }
        for title, seeds in group_by_title(trained).items()
        for panel in _PANELS.values()
        if seeds[0].stage in panel.stages
    ]
    note = _CURVE_NOTE + _EPISODES_NOTE * any(adapter.stage == "sac" for adapter in trained)
    return doc.table(rows, "Where each training curve begins and ends."), note


def group_by_title(trained: Sequence[TrainedAdapter]) -> Mapping[str, list[TrainedAdapter]]:
    """Group adapters of one stage, variant, round and settings, which differ only in seed and data.

    If they were trained with several settings, the titles give the settings that differ.
    """
    stages: dict[str, list[TrainedAdapter]] = {}
    for adapter in trained:
        name = FOLDER_NAME.fullmatch(adapter.folder.name)
        # A milestone has the settings of the final policy: only its variant tells it from a training seed.
        parts = [f"{part} {name[part]}" for part in ("variant", "round") if name and name[part]]
        stages.setdefault(", ".join((adapter.title, *parts)), []).append(adapter)
    groups: dict[str, list[TrainedAdapter]] = {}
    for title, alike in stages.items():
        settings = list(map(_settings, alike))
        names = dict.fromkeys(name for values in settings for name in values)
        differing = [name for name in names if any(values.get(name) != settings[0].get(name) for values in settings)]
        for adapter, its_settings in zip(alike, settings, strict=True):
            full_title = ", ".join((title, *(f"{name} {its_settings.get(name)}" for name in differing)))
            groups.setdefault(full_title, []).append(adapter)
    return groups


def _settings(adapter: TrainedAdapter) -> dict[str, Any]:
    inputs: dict[str, Any] = adapter.metrics.inputs
    flat = {name: inputs.get(name) for name in ("base", "quantization", "dtype", "max_new_tokens")}
    return {**flat, **inputs.get("lora", {}), **inputs.get("optimizer", {})}


def _ends(seeds: Sequence[TrainedAdapter], panel: Panel) -> doc.Row:
    """Return the means of the first and of the last values over the seeds, with intervals; dashes if one has no two."""
    averaged = _EPISODES if seeds[0].stage == "sac" else panel.averaged
    ends: list[tuple[float, float] | None] = [first_and_last(panel.values(adapter), averaged) for adapter in seeds]
    if None in ends:
        return {"first": doc.DASH, "last": doc.DASH}
    return {
        name: interval_cell(over_seeds(values_S)) if len(values_S) > 1 else doc.number(next(iter(values_S)), ".3f")
        for name, values_S in zip(("first", "last"), zip(*filter(None, ends), strict=True), strict=True)
    }


def _series(title: str, curves: Sequence[Sequence[float]]) -> doc.Series:
    """Return one line of a figure: of one seed, or the mean of several with its interval and a thin line for each."""
    lines = tuple(map(_points, curves))
    if len(lines) == 1:
        return doc.Series(name=title, points=lines[0])
    # Stop at the shortest seed: beyond it the mean would cover fewer seeds.
    steps = enumerate(zip(*curves, strict=False), start=1)
    means = [(float(step), over_seeds(values_S)) for step, values_S in steps if all(map(isfinite, values_S))]
    return doc.Series(
        name=title,
        note=f"(mean of {len(lines)})",
        points=thin([(step, mean.mean) for step, mean in means]),
        bounds=thin([(mean.low, mean.high) for _, mean in means]),
        members=lines,
    )


def _points(values: Sequence[float]) -> doc.Points:
    return thin([(float(step), value) for step, value in enumerate(values, start=1) if isfinite(value)])


def training_table(trained: Sequence[TrainedAdapter]) -> doc.Table:
    rows: list[doc.Row] = [
        {
            "stage": adapter.title,
            "adapter": adapter.cell(),
            "data": _data(adapter.metrics),
            "length": _length(adapter.metrics),
            "tokens": doc.number(adapter.metrics.tokens, ","),
            "CPU-s": doc.DASH if (cpu := adapter.metrics.whole_cpu_seconds) is None else doc.number(cpu, ",.0f"),
            "peak GiB": doc.number(adapter.metrics.peak_memory_bytes / 2**30, ".1f"),
            "commit": str((adapter.metrics.measure("code") or {}).get("commit", doc.DASH))[:12],
        }
        for adapter in trained
    ]
    caption = "Data, length and cost of each training stage. A dash: it was resumed, so its CPU time was not measured."
    return doc.table(rows, caption)


def _data(metrics: StageMetrics) -> str | doc.Cell:
    counts = ((metrics.measure(name), word) for name, word in _SAMPLES.items())
    return next((doc.number(count, after=f" {word}") for count, word in counts if count is not None), doc.DASH)


def _length(metrics: StageMetrics) -> doc.Cell:
    if (episodes := metrics.measure("episodes")) is not None:
        return doc.number(episodes, after=f" episodes, {metrics.updates} updates")
    return (
        doc.number(metrics.updates, after=" updates")
        if metrics.updates
        else doc.number(metrics.steps or 0, after=" steps")
    )


def reward_audit(trained: Sequence[TrainedAdapter]) -> Iterator[doc.Table | doc.Words]:
    """Yield the accuracy of each reward model on pairs of held-out tasks, and whether it is more than luck.

    A DPO policy counts as a reward model by its implicit reward.
    """
    audited = [adapter for adapter in trained if adapter.stage in ("reward", "dpo")]
    rows: list[doc.Row] = [
        {
            "reward model": adapter.cell(" (implicit)" * (adapter.stage == "dpo")),
            **{title: _measure(adapter, name) for title, name in _AUDIT_MEASURES.items()},
        }
        for adapter in audited
    ]
    if rows:
        yield doc.table(rows, "The reward models on pairs of held-out tasks.")
        yield _AUDIT_NOTE
    if tested := [_tests(adapter) for adapter in audited if adapter.metrics.measure("held_out_p_value") is not None]:
        yield doc.table(tested, "Tests of the accuracy on held-out pairs.")
        yield _TEST_NOTE


def _tests(adapter: TrainedAdapter) -> doc.Row:
    measure = adapter.metrics.measure
    better, worse = measure("held_out_against_longer")
    against_longer = measure("held_out_p_value_against_longer")
    return {
        "reward model": adapter.cell(),
        "held-out pairs": adapter.metrics.held_out_pairs,
        "p against chance": doc.number(measure("held_out_p_value"), ".2g"),
        "power": doc.number(measure("held_out_power"), ".0%"),
        "p against longer wins": doc.number(against_longer, ".2g", f" ({better} better, {worse} worse)"),
    }


def _measure(adapter: TrainedAdapter, name: str) -> str | doc.Cell:
    """Return a measure with its interval, as far as they exist."""
    interval = adapter.metrics.measure(f"{name}_interval")
    within = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    value = adapter.metrics.measure(name)
    return doc.DASH if value is None else doc.Cell(words=(doc.unbroken(f"{value:.3g}{within}"),), value=value)
