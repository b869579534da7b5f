"""Chapters on costs: what each arm solves within equal budgets, and what it cost to make and to use.

Arms with the same number of trials do not cost the same: advice is paid for, and a better arm stops earlier.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from retroformer.agents.arms.arm import Arm
from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import adapter_name
from retroformer.environments.extras import TaskFacts
from retroformer.files import document as doc
from retroformer.method.records import Outcome, Usage
from retroformer.run.adapters import served_folder
from retroformer.run.arm_names import LIVE, WRITTEN, is_rated
from retroformer.run.stage_metrics import METRICS, StageMetrics, read_metrics
from retroformer.run.store import open_store

from ..measure.results import ArmResult
from .report_input import ReportInput, each_seed

BUDGET_SHARES = (0.25, 0.5, 0.75, 1.0)
"""Budgets, as shares of the largest spending on a task."""

_Spending = list[tuple[float, float]]


class EqualBudget:
    """Chapter on the tasks solved within a budget of tokens or calls per task, actor and reflector together."""

    def __init__(self, evaluation: ReportInput) -> None:
        self._arms = evaluation.results
        self._spent = {unit: {arm.name: _Spending() for arm in self._arms} for unit in ("tokens", "calls")}
        """Spending up to the success that counts, infinite without one, and in all, at each task by arm."""

    def add(self, facts: TaskFacts) -> None:
        """Count one task; training seeds of an arm count as tasks of their own."""
        for arm, seed in each_seed(self._arms, facts):
            valid = [trial for trial in sorted(seed.attempts) if seed.attempts[trial].outcome is not Outcome.INVALID]
            if not valid:
                continue
            won = [seed.attempts[trial].outcome is Outcome.SUCCESS for trial in valid]
            # The first success counts; if the last attempt does, the first after the last failure.
            lost = [place for place, solved in enumerate(won) if not solved]
            counting = max(lost, default=-1) + 1 if arm.last_counts else [*won, True].index(True)
            advice = {trial: reflection.usage for trial, reflection in seed.reflections.items()}
            usages = [seed.attempts[trial].usage + advice.get(trial, Usage()) for trial in valid]
            for unit, spent in self._spent.items():
                totals = list(accumulate(getattr(usage, unit) for usage in usages))
                spent[arm.name].append(([*totals, math.inf][counting], totals[-1]))

    def chapters(self) -> Iterator[doc.Chapter]:
        """Yield the chapter, if any arm has spent anything."""
        if shown := [table for unit, spent in self._spent.items() if (table := _budget_table(spent, unit)) is not None]:
            yield doc.chapter("Solved within equal budgets", *shown)


def _budget_table(spending: Mapping[str, _Spending], unit: str) -> doc.Table | None:
    most = max((total for spent in spending.values() for _, total in spent), default=0.0)
    if not most:
        return None
    budgets = sorted({math.ceil(share * most) for share in BUDGET_SHARES})

    def title(budget: int) -> str:
        return f"{budget:,} {unit} per task"

    def solved_within(spent: _Spending, budget: int) -> doc.Cell:
        return doc.number(fmean(to_solve <= budget for to_solve, _ in spent), ".3f")

    rows: list[doc.Row] = [
        {"arm": doc.arm_cell(name), **{title(budget): solved_within(spent, budget) for budget in budgets}}
        for name, spent in spending.items()
        if spent
    ]
    return doc.table(rows, f"Share of tasks solved within a budget of {unit}.")


class _Cost(NamedTuple):
    experience: Usage
    """Model calls of actor and reflector to collect the experience."""
    tokens: int
    """Tokens trained on, in all stages."""
    cpu_seconds: float | None
    """CPU time of training, in all stages; None if one of them was resumed, which measured only the rest."""


def arm_costs(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield what each arm with a training run cost to make and takes to use, if there is one."""
    costs = [
        (arm, _costs(evaluation.experiment, evaluation.experiment.eval.arms[arm.name])) for arm in evaluation.results
    ]
    rows = [_row(arm, by_seed) for arm, by_seed in costs if by_seed]
    caption = (
        "What each arm cost to make, per training seed, and to use. A placebo costs what its source cost, and other "
        "arms nothing. CPU time is averaged over seeds with no resumed stage; a dash means that there are none."
    )
    if rows:
        yield doc.chapter("What the arms cost to make and to use", doc.table(rows, caption))


def _row(arm: ArmResult, costs: Sequence[_Cost]) -> doc.Row:
    measured = [cost.cpu_seconds for cost in costs if cost.cpu_seconds is not None]
    tasks = max(1, arm.solved_NT.shape[1] * len(arm.seeds))
    return {
        "arm": doc.arm_cell(arm.name),
        "calls to collect": doc.number(fmean(cost.experience.calls for cost in costs), ",.0f"),
        "tokens to collect": doc.number(fmean(cost.experience.tokens for cost in costs), ",.0f"),
        "tokens trained on": doc.number(fmean(cost.tokens for cost in costs), ",.0f"),
        "CPU-s of training": doc.number(fmean(measured), ",.0f") if measured else doc.DASH,
        "calls per task to use": doc.number(arm.usage.calls / tasks, ",.1f"),
        "tokens per task to use": doc.number(arm.usage.tokens / tasks, ",.1f"),
    }


def _costs(experiment: Experiment, arm: Arm) -> list[_Cost]:
    """Return the cost of each training seed, or else of each run whose experience the arm uses."""
    if trained := [cost for model in arm.models if (cost := _cost(experiment, model))]:
        return trained
    return [_Cost(_usage(experiment, run, *own), 0, 0.0) for run, own in arm.experience_of(experiment.run).items()]


def _cost(experiment: Experiment, model: str) -> _Cost | None:
    """Return what an adapter cost, from the metrics and the store of its run; None for a base or a foreign adapter."""
    folder = served_folder(experiment, adapter_name(model))
    if not (folder / METRICS).is_file():
        return None
    # The copy of a promoted adapter lies deeper in the folder of its run.
    run = experiment.folder if experiment.folder in folder.parents else folder.parent
    stages = list(_source_stages(folder, run))
    played = [LIVE] if any(stage.inputs.get("optimizer", {}).get("reward") == "live" for stage in stages) else []
    usage = _usage(experiment, run.name, *played)
    seconds = [stage.whole_cpu_seconds for stage in stages]
    whole = [measured for measured in seconds if measured is not None]
    return _Cost(usage, sum(stage.tokens for stage in stages), sum(whole) if len(whole) == len(seconds) else None)


def _source_stages(folder: Path, run: Path) -> Iterator[StageMetrics]:
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
        return store.usage_of_arms(lambda arm: is_rated(arm) or arm in (WRITTEN, *also))
