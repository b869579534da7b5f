"""Report section on what each arm cost to make: the training runs behind its adapters, and what it takes to use it."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from retroformer.arm_names import LIVE, WRITTEN, is_rated
from retroformer.experiment.adapters import served_folder
from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.base import adapter_name
from retroformer.experiment.storage import open_store
from retroformer.markdown import plain, table
from retroformer.records import Usage
from retroformer.stage_metrics import METRICS, StageMetrics, read_metrics

from ..measure.results import ArmResult


class _Making(NamedTuple):
    """What one training seed cost."""

    experience: Usage
    """Model calls of actor and reflector to collect the experience."""
    tokens: int
    """Tokens trained on, in all stages."""
    cpu_seconds: float | None
    """CPU time of training, in all stages; None if one of them was resumed, which measured only the rest."""


def making(experiment: Experiment, results: Sequence[ArmResult]) -> str:
    """Render a row for each arm that has a training run; empty if no arm has."""
    rows = []
    for arm in results:
        settings = experiment.eval.arms[arm.name]
        made = [cost for model in settings.models if (cost := _cost(experiment, model))]
        runs = settings.experience_of(experiment.run).items()
        experience = made or [_Making(_usage(experiment, run, *own), 0, 0.0) for run, own in runs]
        if not experience:
            continue
        tasks, seeds = arm.solved_NT.shape[1], len(experience)
        measured = [cost.cpu_seconds for cost in experience if cost.cpu_seconds is not None]
        calls, tokens = arm.usage.calls, arm.usage.prompt_tokens + arm.usage.completion_tokens
        rows.append(
            [
                plain(arm.name),
                f"{sum(cost.experience.calls for cost in experience) / seeds:,.0f}",
                f"{sum(_tokens(cost.experience) for cost in experience) / seeds:,.0f}",
                f"{sum(cost.tokens for cost in experience) / seeds:,.0f}",
                f"{fmean(measured):,.0f}" if measured else "-",
                *(f"{spent / max(1, tasks * len(arm.seeds)):,.1f}" for spent in (calls, tokens)),
            ]
        )
    if not rows:
        return ""
    header = ["arm", "calls to collect", "tokens to collect", "tokens trained on", "CPU-s of training"]
    header += ["calls per task to use", "tokens per task to use"]
    caption = (
        "What each arm cost to make, per training seed, and to use. A placebo costs what its source cost, and other "
        "arms nothing. CPU time is averaged over seeds with no resumed stage; a dash means that there are none."
    )
    return table(header, rows, caption)


def _cost(experiment: Experiment, model: str) -> _Making | None:
    """Return what an adapter cost, from the metrics and the store of its run; None for a base or a foreign adapter."""
    folder = served_folder(experiment, adapter_name(model))
    if not (folder / METRICS).is_file():
        return None
    # The copy of a promoted adapter lies deeper in the folder of its run.
    run = experiment.folder if experiment.folder in folder.parents else folder.parent
    stages = list(_stages_behind(folder, run))
    played = [LIVE] if any(stage.inputs.get("optimizer", {}).get("reward") == "live" for stage in stages) else []
    usage = _usage(experiment, run.name, *played)
    seconds = [stage.whole_cpu_seconds for stage in stages]
    whole = [measured for measured in seconds if measured is not None]
    return _Making(usage, sum(stage.tokens for stage in stages), sum(whole) if len(whole) == len(seconds) else None)


def _stages_behind(folder: Path, run: Path) -> Iterator[StageMetrics]:
    """Yield the metrics of an adapter, and once each of those in its run from which it was trained."""
    here = [read_metrics(path.parent) for path in run.glob(f"*/{METRICS}")]
    by_sha256 = {stage.adapter_sha256: stage for stage in here}
    waiting, seen = [read_metrics(folder)], set[str | None]()
    while waiting:
        stage = waiting.pop()
        if stage.adapter_sha256 not in seen:
            seen.add(stage.adapter_sha256)
            yield stage
            used = stage.inputs.get("adapters", {}).values()
            waiting += [by_sha256[sha256] for sha256 in used if sha256 in by_sha256]


def _usage(experiment: Experiment, run: str, *also: str) -> Usage:
    """Return what collecting, written advice and these arms of a run have used; nothing if its store is gone."""
    source = experiment.model_copy(update={"run": run})
    if not source.has_store:
        return Usage()
    with closing(open_store(source)) as store:
        arms = [arm for arm in store.arms() if is_rated(arm) or arm in (WRITTEN, *also)]
        return sum((store.usage(arm) for arm in arms), start=Usage())


def _tokens(usage: Usage) -> int:
    return usage.prompt_tokens + usage.completion_tokens
