"""Report about several actors: tables that show each with every arm."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from retroformer.experiment.config import Experiment
from retroformer.markdown import table

from ..measure.rates import Rates, rates_of
from ..measure.results import ArmResult
from .html import write_page


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
        f"# {experiment.name}: {len(played)} actors\n\n{reflects}## Solved by each actor\n\n"
        f"{solved} (at least {tasks} of each actor), with 95% intervals over tasks.\n\n{finished}\n"
    )
    if any(of_actor.unfinished for of_actor in rates.values()):
        left = ", ".join(f"{of_actor.unfinished} of {of_actor.tasks} with {actor}" for actor, of_actor in rates.items())
        counted = _table(experiment, {actor: (of_actor, of_actor.all_tasks) for actor, of_actor in rates.items()})
        text += f"\n{solved}, unfinished tasks counted as failures. Unfinished in an arm: {left}.\n\n{counted}\n"
    return write_page(experiment, text)


def _table(experiment: Experiment, views: Mapping[str, tuple[Rates, Sequence[ArmResult]]]) -> str:
    trials = range(experiment.loop.trials)
    rows = [
        [
            actor,
            arm.name.removeprefix(f"{actor}/"),
            *(str(rates.intervals.of(solved_T)) for solved_T in arm.solved_NT),
            f"{arm.usage.prompt_tokens:,}",
            f"{arm.usage.completion_tokens:,}",
            f"[report]({actor}/report.md)",
        ]
        for actor, (rates, arms) in views.items()
        for arm in arms
    ]
    return table(["actor", "arm", *(f"by trial {trial}" for trial in trials), "tokens in", "tokens out", ""], rows)
