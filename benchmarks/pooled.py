"""Pools runs of one experiment that differ in their training seed and have played the same held-out tasks.

    python -m benchmarks.pooled EXPERIMENT.yaml FOLDER [RUN ...]

Writes what each evaluated RUN has solved and cost to FOLDER/RUN.json. Then reads all such files of FOLDER, so that the
runs may be on several machines, and writes FOLDER/pooled.md with its figure: intervals are over seeds and tasks.
"""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from eval.measure.results import ArmResult, SeedResult, arm_results
from eval.measure.statistics import Rates
from eval.report import solved
from eval.report.costs import Cost, cost_chapter, costs_of
from eval.report.markdown import to_markdown
from eval.view import charts
from retroformer.config.file import load
from retroformer.files import document as doc
from retroformer.method.records import Task, Usage
from retroformer.run.arm_names import FIRST_TRIAL, own_first_trial, without_version
from retroformer.run.provenance import code_version
from retroformer.run.store import open_store


def results_of(config: Path, run: str) -> dict[str, Any]:
    """Return what a run has solved and cost, in JSON's types.

    Exits if it is not evaluated, if tasks are unfinished, or if an arm was evaluated with two adapters.
    """
    experiment = load(config, [f"run={run}"])
    if not experiment.has_store:
        sys.exit(f"No run {run}: run `retroformer eval {config} run={run}` first.")
    arms, names = experiment.eval.arms, experiment.eval.stored_names
    own = {stored: own_first_trial(stored) for arm in arms if arms[arm].advises_first for stored in names[arm]}
    with closing(open_store(experiment)) as store:
        played = sorted(store.played_tasks(FIRST_TRIAL))
        tasks = [Task(id=name, environment=experiment.environment.name, split="") for name in played]
        results = arm_results(store, tasks, names, experiment.loop.trials, own=own)
        stored = set(chain.from_iterable(names.values()))
        again = [arm for arm in store.arms() if arm not in stored and without_version(arm) in stored]
        plan = (store.conditions(FIRST_TRIAL) or {}).get("plan_sha256")
    if unfinished := max(arm.incomplete for arm in results):
        sys.exit(f"{unfinished} tasks of {run} are unfinished: run `retroformer eval {config} run={run}` first.")
    if again:
        sys.exit(f"{run} has results of two adapters for {without_version(again[0])}: evaluate in another run.")
    return {
        "code": code_version().model_dump(),
        "plan_sha256": plan,
        "tasks": played,
        "arms": {
            arm.name: {
                "shares_first": arm.shares_first,
                "solved_NT": ["".join(f"{value:.0f}" for value in row) for row in arm.solved_NT],
                # None: the return is 1 for a solved task, else 0.
                "return_NT": None if (arm.return_NT == arm.solved_NT).all() else np.round(arm.return_NT, 4).tolist(),
                "invalid": arm.invalid,
                "usage": arm.usage.model_dump(),
                "costs": [
                    cost._asdict() | {"experience": cost.experience.model_dump()}
                    for cost in costs_of(experiment, arms[arm.name])
                ],
            }
            for arm in results
        },
    }


def pooled(name: str, runs: Sequence[dict[str, Any]]) -> ArmResult:
    """Return the results of an arm with a seed for each run."""

    def seed(run: dict[str, Any]) -> SeedResult:
        arm = run["arms"][name]
        wins = np.array([list(map(float, row)) for row in arm["solved_NT"]])
        returns = np.array(arm["return_NT"]) if arm["return_NT"] else wins
        usage = Usage.model_validate(arm["usage"])
        finished = np.ones(wins.shape[1], bool)
        return SeedResult(f"{name}/{run['name']}", wins, returns, finished, arm["invalid"], usage)

    return ArmResult(name, tuple(map(seed, runs)), runs[0]["arms"][name]["shares_first"])


def costs(name: str, runs: Sequence[dict[str, Any]]) -> list[Cost]:
    """Return what each seed of an arm has cost."""
    return [
        Cost(**cost | {"experience": Usage.model_validate(cost["experience"])})
        for run in runs
        for cost in run["arms"][name]["costs"]
    ]


def main(config: Path, folder: Path, *names: str) -> None:
    experiment = load(config)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.json").write_text(json.dumps({"name": name, **results_of(config, name)}) + "\n")
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if any(run["tasks"] != runs[0]["tasks"] for run in runs):
        sys.exit(f"The runs in {folder} have not played the same tasks, so they cannot be pooled.")
    arms = [pooled(name, runs) for name in experiment.eval.arms]
    rates, planned = Rates(arms), experiment.eval.comparisons
    rows = [solved.planned_row(comparison, rates, np.array([])) for comparison in planned]
    chapters = (
        doc.chapter("Solved by trial", solved.solved_by_trial(arms)),
        *([doc.chapter("Planned comparisons", doc.table(rows, "Over seeds and tasks."))] if rows else []),
        doc.chapter("Differences", solved.paired_differences(arms), *solved.return_differences(arms)),
        *cost_chapter([(arm, costs(arm.name, runs)) for arm in arms]),
    )
    title = f"{experiment.run}: {len(runs)} training seeds, {len(runs[0]['tasks'])} tasks"
    report = doc.Report(title=title, run=experiment.run, place=str(folder), chapters=chapters)
    (folder / "pooled.md").write_text(to_markdown(report))
    for figure in report.figures:
        (folder / figure.file_name).write_text(charts.file(figure.chart, figure.caption))
    print(folder / "pooled.md")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
