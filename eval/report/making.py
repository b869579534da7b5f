"""Report section on what each arm cost to make: the training runs behind its adapters, and what it takes to use it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from retroformer.arm_names import is_for_training
from retroformer.experiment.adapters import model_folder, reward_beside
from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.eval import Arm
from retroformer.experiment.storage import open_store
from retroformer.markdown import plain, table
from retroformer.records import Usage
from retroformer.stage_metrics import METRICS, read_metrics

from ..measure.results import ArmResult

_CHAINS = {
    "warm": ("warm",),
    "sft": ("warm", "sft"),
    "dpo": ("warm", "sft", "dpo"),
    "grpo": ("warm", "sft", "reward", "grpo"),
    "ppo": ("warm", "sft", "reward", "ppo"),
}
"""Stages that were trained for an adapter of each stage. GRPO on live returns has no reward model of its own."""


class _Making(NamedTuple):
    """What one training seed cost."""

    experience: Usage
    """Model calls of actor and reflector to collect the experience."""
    tokens: int
    """Tokens trained on, in all stages."""
    cpu_seconds: float


def making(experiment: Experiment, results: Sequence[ArmResult]) -> str:
    """Render a row for each arm that has a training run; empty if no arm has."""
    rows = []
    for arm in results:
        made = [cost for model in _models(experiment.eval.arms[arm.name]) if (cost := _cost(experiment, model))]
        experience = made or [_Making(_usage(experiment, run), 0, 0.0) for run in _runs(experiment, arm.name)]
        if not experience:
            continue
        tasks, seeds = arm.solved_NT.shape[1], len(experience)
        calls, tokens = arm.usage.calls, arm.usage.prompt_tokens + arm.usage.completion_tokens
        rows.append(
            [
                plain(arm.name),
                f"{sum(cost.experience.calls for cost in experience) / seeds:,.0f}",
                f"{sum(_tokens(cost.experience) for cost in experience) / seeds:,.0f}",
                f"{sum(cost.tokens for cost in experience) / seeds:,.0f}",
                f"{sum(cost.cpu_seconds for cost in experience) / seeds:,.0f}",
                *(f"{spent / max(1, tasks * len(arm.seeds)):,.1f}" for spent in (calls, tokens)),
            ]
        )
    if not rows:
        return ""
    header = ["arm", "calls to collect", "tokens to collect", "tokens trained on", "CPU-s of training"]
    header += ["calls per task to use", "tokens per task to use"]
    caption = "What each arm cost to make, per training seed, and to use. Other arms cost nothing to make."
    return table(header, rows, caption)


def _models(arm: Arm) -> tuple[str, ...]:
    if arm.kind != "model":
        return ()
    return (arm.model,) if isinstance(arm.model, str) else arm.model


def _runs(experiment: Experiment, name: str) -> tuple[str, ...]:
    """Return the runs whose experience an arm without a trained adapter uses."""
    arm = experiment.eval.arms[name]
    if arm.kind in ("retrieved", "table"):
        return arm.runs or (experiment.run,)
    if arm.kind == "document":
        parents = Path(arm.file).parents
        return tuple(folder.name for folder in parents if (folder / "experience.db").is_file())
    return ()


def _cost(experiment: Experiment, model: str) -> _Making | None:
    """Return what an adapter cost, from the metrics and the store of its run; None for a base or a foreign adapter."""
    folder = model_folder(experiment, model.partition("+")[0])
    if not (folder / METRICS).is_file():
        return None
    stage, _, number = read_metrics(folder).stage, *folder.name.partition("-")[1:]
    stages = [read_metrics(path) for path in _chain(folder, stage, number) if (path / METRICS).is_file()]
    usage = _usage(experiment, folder.parent.name)
    return _Making(usage, sum(metrics.tokens for metrics in stages), sum(metrics.cpu_seconds for metrics in stages))


def _chain(folder: Path, stage: str, number: str) -> Iterator[Path]:
    for before in _CHAINS.get(stage, (stage,)):
        if before == stage:
            yield folder
        elif before == "reward":
            yield reward_beside(folder)
        else:
            yield folder.with_name(f"{before}-{number}" if number and before != "warm" else before)


def _usage(experiment: Experiment, run: str) -> Usage:
    """Return what the training arms of a run have used; nothing if its store is gone."""
    source = experiment.model_copy(update={"run": run})
    if source.store is None and not (source.folder / "experience.db").is_file():
        return Usage()
    with closing(open_store(source)) as store:
        return sum((store.usage(arm) for arm in store.arms() if is_for_training(arm)), start=Usage())


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens
