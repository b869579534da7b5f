"""Report section on how the models were trained: metrics that each training stage wrote, seed by seed."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retroformer.experiment.adapters import reward_beside, reward_folder, served_folder
from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.base import best_of
from retroformer.markdown import code, table
from retroformer.stage_metrics import METRICS, StageMetrics, read_metrics

_STAGES = {
    "warm": "warm start",
    "sft": "SFT",
    "reward": "reward model",
    "dpo": "DPO",
    "grpo": "GRPO",
    "ppo": "PPO",
    "sac": "SAC of the actor",
}
_SAMPLES = {"samples": "texts", "pairs": "pairs", "prompts": "prompts", "env_steps": "steps"}
_AUDITED = {
    "accuracy in training": "train_accuracy",
    "held-out pairs": "held_out_pairs",
    "held-out accuracy": "held_out_accuracy",
    "longer wins": "held_out_longer_wins",
    "majority": "held_out_majority",
    "calibration error": "held_out_calibration_error",
    "Brier": "held_out_brier",
    "correlation with rating": "held_out_correlation",
    "with length": "held_out_length_correlation",
    "with length, in pairs": "held_out_length_correlation_within_pairs",
    "tasks read by its start": "held_out_tasks_read_by_start",
}
_AUDIT_NOTE = (
    "Measured on pairs of held-out tasks, with Wilson's 95% intervals. *Longer wins* and *majority* are accuracies "
    "of rules that ignore the failure: prefer the longer text; prefer the text that won more often than it lost in "
    "training. Calibration error and Brier score (.25 for a coin) use Bradley-Terry probabilities. Correlations are "
    "Pearson's, of the score with the realised rating and with the number of tokens of the reflection. "
    "The last column is the number of held-out tasks on which the adapter that training started from was trained: it "
    "has read their failures, so the accuracy is optimistic."
)

_TESTED = ("held-out pairs", "p against chance", "power", "p against longer wins", "pairs for 80% power")
_TEST_NOTE = (
    "Whether the accuracy above is more than luck. Each p-value is of an exact one-sided test: of the pairs in order "
    "against a coin, and of the pairs on which reward model and *longer wins* differ (a sign test). The power is the "
    "chance that the first test, at the 5% level, recognises a true accuracy of 65%; the last column is the number of "
    "pairs that 80% power takes. A p-value above .05 does not show that a reward model is useless, least of all at low "
    "power. PPO and GRPO start from any reward model that orders more than half of at least five pairs correctly."
)


class TrainedAdapter(NamedTuple):
    """Trained adapter and the metrics that its stage wrote."""

    folder: Path
    metrics: StageMetrics

    @property
    def stage(self) -> str:
        return self.metrics.stage

    @property
    def title(self) -> str:
        """Name of the stage, followed by `live` or `stored` if its rewards were the actor's own returns."""
        name = _STAGES[self.stage]
        return f"{name} {self._paid_in}" if self._paid_in in ("live", "stored") else name

    @property
    def paid_by_reward_model(self) -> bool:
        """True if a reward model gave the rewards: always for PPO, for GRPO unless its rewards were ratings."""
        return self.stage == "ppo" or self._paid_in == "model"

    @property
    def _paid_in(self) -> str | None:
        """Source of GRPO's rewards in its config: `model`, `live` or `stored`."""
        return self.metrics.inputs.get("optimizer", {}).get("reward") if self.stage == "grpo" else None


def trained_adapters(experiment: Experiment, models: Sequence[str]) -> list[TrainedAdapter]:
    """Return the adapters of a report's models and the reward models that trained them or choose answers, by stage."""
    judged = {name: chosen.model for name in models if (chosen := best_of(name))}
    policies = written_in([served_folder(experiment, judged.get(name, name)) for name in models])
    rewards = [reward_beside(adapter.folder) for adapter in policies if adapter.paid_by_reward_model]
    rewards += [reward_folder(experiment, model) for model in judged.values()]
    unique: dict[Any, TrainedAdapter] = {}
    for adapter in (*policies, *written_in(rewards)):
        # A copy in another run is the same adapter.
        unique.setdefault(adapter.metrics.adapter_sha256 or adapter.folder, adapter)
    return in_order(unique.values())


def in_order(adapters: Iterable[TrainedAdapter]) -> list[TrainedAdapter]:
    """Return adapters in the order of their stages."""
    return sorted(adapters, key=lambda adapter: (list(_STAGES).index(adapter.stage), str(adapter.folder)))


def written_in(folders: Sequence[Path]) -> list[TrainedAdapter]:
    """Read the adapters of those folders in which a training stage wrote metrics."""
    written = [folder for folder in folders if (folder / METRICS).is_file()]
    adapters = [TrainedAdapter(folder, read_metrics(folder)) for folder in written]
    return [adapter for adapter in adapters if adapter.stage in _STAGES]


def training_table(trained: Sequence[TrainedAdapter]) -> str:
    """Render the data, length and cost of every stage."""
    rows = [
        [
            adapter.title,
            code(str(adapter.folder)),
            next(
                f"{count} {word}"
                for name, word in _SAMPLES.items()
                if (count := adapter.metrics.measure(name)) is not None
            ),
            _length(adapter.metrics),
            f"{adapter.metrics.tokens:,}",
            "-" if (cpu := adapter.metrics.whole_cpu_seconds) is None else f"{cpu:,.0f}",
            f"{adapter.metrics.peak_memory_bytes / 2**30:.1f}",
        ]
        for adapter in trained
    ]
    header = ["stage", "adapter", "data", "length", "tokens", "CPU-s", "peak GiB"]
    return table(
        header,
        rows,
        "Data, length and cost of each training stage. A dash: it was resumed, so its CPU time was not measured.",
    )


def _length(metrics: StageMetrics) -> str:
    if (episodes := metrics.measure("episodes")) is not None:
        return f"{episodes} episodes, {metrics.updates} updates"
    return f"{metrics.updates} updates" if metrics.updates else f"{metrics.steps} steps"


def reward_audit(trained: Sequence[TrainedAdapter]) -> str:
    """Render the accuracy of each reward model on pairs of held-out tasks; empty if there are none.

    A DPO policy counts as a reward model by its implicit reward.
    """
    rows = [
        [
            code(str(adapter.folder)) + " (implicit)" * (adapter.stage == "dpo"),
            *(_shown(adapter, name) for name in _AUDITED.values()),
        ]
        for adapter in trained
        if adapter.stage in ("reward", "dpo")
    ]
    shown = table(["reward model", *_AUDITED], rows, "The reward models on pairs of held-out tasks.")
    return f"{shown}\n\n{_AUDIT_NOTE}{_tests(trained)}" if rows else ""


def _tests(trained: Sequence[TrainedAdapter]) -> str:
    """Render the tests of the held-out accuracies; empty if none of these models held pairs out."""
    rows = [
        [
            code(str(adapter.folder)),
            str(adapter.metrics.held_out_pairs),
            f"{p_value:.2g}",
            f"{adapter.metrics.measure('held_out_power'):.0%}",
            f"{adapter.metrics.measure('held_out_p_value_against_longer'):.2g} ({{}} better, {{}} worse)".format(
                *adapter.metrics.measure("held_out_against_longer")
            ),
            str(adapter.metrics.measure("held_out_pairs_needed")),
        ]
        for adapter in trained
        if (p_value := adapter.metrics.measure("held_out_p_value")) is not None
    ]
    shown = table(["reward model", *_TESTED], rows, "Tests of the accuracy on held-out pairs.")
    return f"\n\n{shown}\n\n{_TEST_NOTE}" if rows else ""


def _shown(adapter: TrainedAdapter, name: str) -> str:
    """Render a measure with its interval, as far as they exist."""
    interval = adapter.metrics.measure(f"{name}_interval")
    within = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    value = adapter.metrics.measure(name)
    return "-" if value is None else f"{value:.3g}{within}"
