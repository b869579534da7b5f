"""Report about repeats: mean and standard deviation of each arm over them (Reflexion, Table 4)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from retroformer.experiment.config import Experiment
from retroformer.markdown import plain, table

from ..measure.results import ArmResult, with_unfinished
from .document import Report
from .files import place_of, write_files
from .report import arms_of


def write_repeats_table(experiment: Experiment, played: Mapping[str, Sequence[ArmResult]]) -> Path:
    """Write report.md and report.html with the tables of all repeats; return the path of report.html.

    Unfinished tasks count as failures.
    """
    counted = {name: with_unfinished(arms) for name, arms in played.items()}
    left = sum(max(arm.incomplete for arm in arms) for arms in played.values())
    unfinished = f" {left} of them were left unfinished and count as failures." if left else ""
    tasks = next(iter(counted.values()))[0].solved_NT.shape[1]
    text = (
        f"# {plain(experiment.name)}: {len(played)} repeats\n\n## Solved over all repeats\n\n"
        f"Share of {tasks} {experiment.environment.name} tasks solved: mean and standard deviation over {len(played)} "
        f"repeats, each with other random numbers.{unfinished}\n\n{_means(experiment, counted)}\n\n"
        f"## Solved in each repeat\n\n{_each(experiment, counted)}\n"
    )
    report = Report(
        title=f"{experiment.name}: {len(played)} repeats",
        run=experiment.name,
        place=place_of(experiment),
        text=text,
        arms=arms_of(arm for arms in played.values() for arm in arms),
    )
    return write_files(report, experiment.report_folder)


def _means(experiment: Experiment, repeats: Mapping[str, Sequence[ArmResult]]) -> str:
    rows = []
    for place, name in enumerate(experiment.eval.arms):
        shares_RN = [arms[place].solved_NT.mean(axis=1) for arms in repeats.values()]
        by_trial = zip(*shares_RN, strict=True)
        rows.append([plain(name), *(f"{fmean(shares):.3f} ± {stdev(shares):.3f}" for shares in by_trial)])
    return table(["arm", *_trials(experiment)], rows, "Mean and standard deviation over the repeats.")


def _each(experiment: Experiment, repeats: Mapping[str, Sequence[ArmResult]]) -> str:
    rows = [
        [
            name,
            plain(arm.name.removeprefix(f"{name}/")),
            *(f"{share:.3f}" for share in arm.solved_NT.mean(axis=1)),
            link,
        ]
        for name, arms in repeats.items()
        for link in (f"[report](<{name}/report.md>)",)
        for arm in arms
    ]
    return table(["repeat", "arm", *_trials(experiment), "more"], rows, "Share of tasks solved in each repeat.")


def _trials(experiment: Experiment) -> list[str]:
    return [f"by trial {trial}" for trial in range(experiment.loop.trials)]
