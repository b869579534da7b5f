"""How the models of a report were trained: what each stage measured of itself, seed by seed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from eval.table import table
from retroformer.best_of import best_of, model_folder, reward_beside, reward_folder
from retroformer.config import Experiment

_STAGES = {"warm": "warm start", "sft": "SFT", "reward": "reward model", "dpo": "DPO", "grpo": "GRPO", "ppo": "PPO"}
_SAMPLES = {"samples": "texts", "pairs": "pairs", "prompts": "prompts"}
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
}
_AUDIT_IN_WORDS = (
    "Of the pairs of held-out tasks, with Wilson's 95 % intervals. *Longer wins* and *majority* are the accuracies of "
    "rules that never look at the failure: the longer text wins; the text wins that won more often than it lost in "
    "training. The probabilities behind calibration error and Brier score (.25 for a coin) are Bradley-Terry's. "
    "Correlations are Pearson's, of the score with the realised rating and with the tokens of the reflection."
)


class Trained(NamedTuple):
    """A trained adapter, by what its stage wrote down."""

    folder: Path
    metrics: dict[str, Any]

    @property
    def stage(self) -> str:
        return str(self.metrics["stage"])

    @property
    def title(self) -> str:
        """The stage in words, and where its rewards came from if they were the actor's own returns."""
        return f"{_STAGES[self.stage]} live" if self._paid_in == "live" else _STAGES[self.stage]

    @property
    def paid_by_reward_model(self) -> bool:
        """Whether its score is that of a reward model: PPO's is, and GRPO's where it was not tried live."""
        return self.stage == "ppo" or self._paid_in == "model"

    @property
    def _paid_in(self) -> str | None:
        """Where GRPO's rewards came from, by its page."""
        return self.metrics.get("inputs", {}).get("optimizer", {}).get("reward") if self.stage == "grpo" else None


def trained_adapters(experiment: Experiment, models: Sequence[str]) -> list[Trained]:
    """Those behind the models of a report, and the reward models that paid them or that choose; stage by stage."""
    judged = {name: chosen.model for name in models if (chosen := best_of(name))}
    policies = _written_in([model_folder(experiment, judged.get(name, name)) for name in models])
    rewards = [reward_beside(one.folder) for one in policies if one.paid_by_reward_model]
    rewards += [reward_folder(experiment, model) for model in judged.values()]
    found: dict[Any, Trained] = {}
    for one in (*policies, *_written_in(rewards)):
        # A copy in another run is no other adapter.
        found.setdefault(one.metrics.get("adapter_sha256", one.folder), one)
    return sorted(found.values(), key=lambda one: (list(_STAGES).index(one.stage), str(one.folder)))


def _written_in(folders: Sequence[Path]) -> list[Trained]:
    """What the stages of training wrote down in those of these folders that they have filled."""
    paths = [folder / "metrics.json" for folder in folders]
    found = [Trained(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in paths if path.is_file()]
    return [one for one in found if one.metrics.get("stage") in _STAGES]


def training_table(trained: Sequence[Trained]) -> str:
    """Data, length and cost of every stage."""
    rows = [
        [
            one.title,
            f"`{one.folder}`",
            next(f"{one.metrics[name]} {word}" for name, word in _SAMPLES.items() if name in one.metrics),
            f"{one.metrics['updates']} updates" if "updates" in one.metrics else f"{one.metrics['steps']} steps",
            f"{one.metrics['tokens']:,}",
            f"{one.metrics['cpu_seconds']:,.0f}",
            f"{one.metrics['peak_memory_bytes'] / 2**30:.1f}",
        ]
        for one in trained
    ]
    return table(["stage", "adapter", "data", "length", "tokens", "CPU-s", "peak GiB"], rows)


def reward_audit(trained: Sequence[Trained]) -> str:
    """What each reward model is worth on pairs of tasks that it had not seen; empty where none was trained.

    A policy of DPO is one, too: by its implicit reward.
    """
    rows = [
        [f"`{one.folder}`" + " (implicit)" * (one.stage == "dpo"), *(_shown(one, name) for name in _AUDITED.values())]
        for one in trained
        if one.stage in ("reward", "dpo")
    ]
    return f"{table(['reward model', *_AUDITED], rows)}\n\n{_AUDIT_IN_WORDS}" if rows else ""


def _shown(one: Trained, name: str) -> str:
    """A measure with its interval, where they are known."""
    interval = one.metrics.get(f"{name}_interval")
    within = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""
    return f"{one.metrics[name]:.3g}{within}" if name in one.metrics else "-"
