"""Chapters on costs: what each arm solves within equal budgets, and what it cost to make and to use.

Arms with the same number of trials do not cost the same: advice is paid for, and a better arm stops earlier.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
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
from retroformer.run.arm_names import LIVE, WRITTEN, collect_arm, is_rated
from retroformer.run.store import open_store

from ..measure.results import ArmResult
from ..measure.statistics import MeanInterval, bootstrap
from .report_input import ReportInput, each_seed
from .training import TrainedAdapter, adapters_in

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


class Cost(NamedTuple):
    """What it took to make one adapter, or the experience that an arm uses."""

    ratings: int
    """Retries with advice that all its stages read."""
    experience: Usage
    """Model calls of actor and reflector to collect the experience."""
    tokens: int = 0
    """Tokens trained on, in all stages."""
    cpu_seconds: float | None = 0.0
    """CPU time of training, in all stages; None if one of them was resumed, which measured only the rest."""
    stage: str = ""
    """Title of the last stage."""
    begins: str | None = None
    """Hash of the policy that the last stage started from."""
    sha256: str | None = None
    """Hash of the adapter."""


def arm_costs(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield what each arm with a training run cost to make and takes to use, if there is one."""
    arms = evaluation.experiment.eval.arms
    return cost_chapter([(arm, costs_of(evaluation.experiment, arms[arm.name])) for arm in evaluation.results])


def cost_chapter(costs: Sequence[tuple[ArmResult, Sequence[Cost]]]) -> Iterator[doc.Chapter]:
    """Yield the chapter on the costs of arms, one cost for each training seed, if any arm cost something."""
    rows = [_row(arm, by_seed) for arm, by_seed in costs if by_seed]
    caption = (
        "What each arm cost to make, per training seed, and to use. Ratings are retries with advice that its stages "
        "read. A placebo costs what its source cost, and other arms nothing. CPU time is averaged over seeds with no "
        "resumed stage; a dash means that there are none. Calls and tokens of live returns are those of all GRPO of "
        "the run."
    )
    if rows:
        yield doc.chapter("What the arms cost to make and to use", *_ladder(costs), doc.table(rows, caption))


def _ladder(costs: Sequence[tuple[ArmResult, Sequence[Cost]]]) -> Iterator[doc.Figure]:
    """Yield the figure of success against ratings, if some stage was trained with several numbers of them.

    The line of a stage begins at the arm that its training started from.
    """
    trained = [(arm, arm_costs) for arm, arm_costs in costs if arm_costs and arm_costs[0].stage]
    by_adapters = {frozenset(cost.sha256 for cost in arm_costs): (arm, arm_costs) for arm, arm_costs in trained}
    lines: dict[str, dict[str, tuple[float, MeanInterval]]] = {}
    for arm, arm_costs in trained:
        start = by_adapters.get(frozenset(cost.begins for cost in arm_costs))
        for plotted, plotted_costs in (start, (arm, arm_costs)) if start else ((arm, arm_costs),):
            ratings = fmean(cost.ratings for cost in plotted_costs)
            lines.setdefault(arm_costs[0].stage, {})[plotted.name] = ratings, bootstrap(plotted.solved_by(-1))
    series = []
    for stage, line in lines.items():
        points = sorted(line.values(), key=lambda point: point[0])
        if points[0][0] < points[-1][0]:
            means = tuple((ratings, interval.mean) for ratings, interval in points)
            bounds = tuple((interval.low, interval.high) for _, interval in points)
            series.append(doc.Series(name=stage, points=means, bounds=bounds, note=f"{means[-1][1]:.2f}"))
    if series:
        chart = doc.LineChart(x_title="ratings read", y_title="share of held-out tasks solved", series=tuple(series))
        yield doc.Figure(name="ratings", caption="Tasks solved by the last trial against ratings read.", chart=chart)


def _row(arm: ArmResult, costs: Sequence[Cost]) -> doc.Row:
    measured = [cost.cpu_seconds for cost in costs if cost.cpu_seconds is not None]
    tasks = max(1, arm.solved_NT.shape[1] * len(arm.seeds))
    return {
        "arm": doc.arm_cell(arm.name),
        "ratings": doc.number(fmean(cost.ratings for cost in costs), ",.0f"),
        "calls to collect": doc.number(fmean(cost.experience.calls for cost in costs), ",.0f"),
        "tokens to collect": doc.number(fmean(cost.experience.tokens for cost in costs), ",.0f"),
        "tokens trained on": doc.number(fmean(cost.tokens for cost in costs), ",.0f"),
        "CPU-s of training": doc.number(fmean(measured), ",.0f") if measured else doc.DASH,
        "calls per task to use": doc.number(arm.usage.calls / tasks, ",.1f"),
        "tokens per task to use": doc.number(arm.usage.tokens / tasks, ",.1f"),
    }


def costs_of(experiment: Experiment, arm: Arm) -> list[Cost]:
    """Return the cost of each training seed, or else of each run whose experience the arm uses."""
    if trained := [cost for model in arm.models if (cost := _cost(experiment, model))]:
        return trained
    uses = arm.experience_of(experiment.run).items()
    return [Cost(*_used(experiment, run, partial(_is_experience, own), (WRITTEN,))) for run, own in uses]


def _is_experience(own: Collection[str], arm: str) -> bool:
    return is_rated(arm) or arm in own


def _cost(experiment: Experiment, model: str) -> Cost | None:
    """Return what an adapter cost, from the metrics and the store of its run; None for a base or a foreign adapter."""
    folder = served_folder(experiment, adapter_name(model))
    # The copy of a promoted adapter lies deeper in the folder of its run.
    run = experiment.folder if experiment.folder in folder.parents else folder.parent
    if not (stages := list(_source_stages(folder, run))):
        return None
    also = (WRITTEN, LIVE) if any(stage.reward_source == "live" for stage in stages) else (WRITTEN,)
    rounds = [stage.metrics.rounds for stage in stages]
    read = {collect_arm(number) for own in rounds for number in own or ()}
    counts = is_rated if None in rounds else read.__contains__
    ratings, usage = _used(experiment, run.name, counts, also)
    seconds = [stage.metrics.whole_cpu_seconds for stage in stages]
    known_seconds = [measured for measured in seconds if measured is not None]
    last = stages[0]
    used = last.metrics.inputs.get("adapters", {})
    return Cost(
        ratings + sum(map(_live_ratings, stages)),
        usage,
        sum(stage.metrics.tokens for stage in stages),
        sum(known_seconds) if len(known_seconds) == len(seconds) else None,
        last.title,
        used.get("sft") or used.get("start"),
        last.metrics.adapter_sha256,
    )


def _source_stages(folder: Path, run: Path) -> Iterator[TrainedAdapter]:
    """Yield an adapter, and once each of those in its run from which it was trained."""
    by_sha256 = {stage.metrics.adapter_sha256: stage for stage in adapters_in(sorted(run.glob("*")))}
    waiting, seen = adapters_in([folder]), set[str | None]()
    while waiting:
        stage = waiting.pop()
        if stage.metrics.adapter_sha256 not in seen:
            seen.add(stage.metrics.adapter_sha256)
            yield stage
            used = stage.metrics.inputs.get("adapters", {}).values()
            waiting += [by_sha256[sha256] for sha256 in used if sha256 in by_sha256]


def _live_ratings(stage: TrainedAdapter) -> int:
    """Return the number of retries that rated responses in training: one for each distinct text of a group."""
    steps = stage.metrics.inputs.get("optimizer", {})
    groups = (steps["batch_size"] // steps["group"] * update["different_in_group"] for update in stage.metrics.history)
    return round(sum(groups)) if stage.reward_source == "live" else 0


def _used(experiment: Experiment, run: str, counts: Callable[[str], bool], also: Collection[str]) -> tuple[int, Usage]:
    """Return the number of texts that were tried in the arms that `counts`, and their usage with that of `also`.

    Both are 0 if its store is gone.
    """
    source = experiment.model_copy(update={"run": run})
    if not source.has_store:
        return 0, Usage()
    with closing(open_store(source)) as store:
        advice = sum(stored.advice for arm, stored in store.arm_counts().items() if counts(arm))
        return advice, store.usage_of_arms(lambda arm: counts(arm) or arm in also)
