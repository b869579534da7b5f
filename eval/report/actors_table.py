"""Report about several actors: tables that show each with every arm."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from retroformer.experiment.config import Experiment
from retroformer.markdown import plain, table

from ..measure.rates import Rates, rates_of
from ..measure.results import ArmResult
from .document import Report
from .files import place_of, write_files
from .report import arms_of


def write_actors_table(experiment: Experiment, played: Mapping[str, Sequence[ArmResult]]) -> Path:
    """Write report.md and report.html with a table of all actors; return the path of report.html."""
    reflects = "Each model writes the advice of its own arms.\n\n" if experiment.eval.actors_reflect else ""
    rates = {actor: rates_of(arms, experiment.seed) for actor, arms in played.items()}
    tasks = min(of_actor.finished_tasks for of_actor in rates.values())
    solved = f"Share of {experiment.environment.name} tasks solved"
    finished = _table(
        experiment,
        {actor: (of_actor, of_actor.finished) for actor, of_actor in rates.items() if of_actor.finished_tasks},
    )
    text = (
        f"# {plain(experiment.name)}: {len(played)} actors\n\n{reflects}## Solved by each actor\n\n"
        f"{solved} (at least {tasks} of each actor), with 95% intervals over tasks.\n\n{finished}\n"
    )
    if any(of_actor.unfinished for of_actor in rates.values()):
        left = ", ".join(
            f"{of_actor.unfinished} of {of_actor.tasks} with {plain(actor)}" for actor, of_actor in rates.items()
        )
        counted = _table(experiment, {actor: (of_actor, of_actor.all_tasks) for actor, of_actor in rates.items()})
        text += f"\n{solved}, unfinished tasks counted as failures. Unfinished in an arm: {left}.\n\n{counted}\n"
    report = Report(
        title=f"{experiment.name}: {len(played)} actors",
        run=experiment.name,
        place=place_of(experiment),
        text=text,
        arms=arms_of(arm for arms in played.values() for arm in arms),
    )
    return write_files(report, experiment.report_folder)


def _table(experiment: Experiment, views: Mapping[str, tuple[Rates, Sequence[ArmResult]]]) -> str:
    trials = range(experiment.loop.trials)
    rows = [
        [
            plain(actor),
            plain(arm.name.removeprefix(f"{actor}/")),
            *(str(rates.intervals.of(arm.solved_by(trial))) for trial in range(len(arm.solved_NT))),
            f"{arm.usage.prompt_tokens:,}",
            f"{arm.usage.completion_tokens:,}",
            f"[report](<{actor}/report.md>)",
        ]
        for actor, (rates, arms) in views.items()
        for arm in arms
    ]
    header = ["actor", "arm", *(f"by trial {trial}" for trial in trials), "tokens in", "tokens out", "more"]
    return table(header, rows, "Share of tasks solved with each actor.")
