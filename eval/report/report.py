"""Writes runs/NAME/eval: the report of an evaluation, or of all actors, repeats (Reflexion, Table 4) or domains."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev

from retroformer.config.experiment import Experiment
from retroformer.environments.extras import ChapterBuilder
from retroformer.environments.registry import extras
from retroformer.files.document import (
    Cell,
    Chapter,
    Column,
    Header,
    Part,
    Row,
    Table,
    Words,
    arm_cell,
    chapter,
    number,
    table,
    trial_columns,
)

from ..measure.rates import Rates, rates_of
from ..measure.results import ArmResult, with_unfinished
from .advice import Examples, Leaks, RetrievedAdvice
from .attempts import Attempts
from .costs import EqualBudget, making
from .evaluation import Evaluated
from .files import report_of, write_files
from .headline import front, planned_comparisons
from .overoptimisation import score_gains
from .setting import WhoPlayed, origin, served_models, stage_configs
from .solved import by_trial, differences, interval_cell, stopping
from .telemetry import AdviceTelemetry
from .training import training


def _of_environment(evaluated: Evaluated) -> ChapterBuilder | Iterable[Chapter]:
    """Return the environment's own chapters, if it has any."""
    chapters = extras(evaluated.experiment.environment).chapters
    return chapters(evaluated.results) if chapters else ()


CHAPTERS: tuple[Callable[[Evaluated], ChapterBuilder | Iterable[Chapter]], ...] = (
    front,
    planned_comparisons,
    WhoPlayed,
    by_trial,
    differences,
    EqualBudget,
    making,
    stopping,
    served_models,
    Attempts,
    training,
    stage_configs,
    score_gains,
    AdviceTelemetry,
    RetrievedAdvice,
    Leaks,
    _of_environment,
    Examples,
    origin,
)
"""What computes the chapters, in order: functions, and classes that count the stored facts of each task first."""


Results = Mapping[str, Sequence[ArmResult]]
"""Results of arms by actor or repeat; of a domain without either, under the empty name."""


def write_report(evaluated: Evaluated) -> Path:
    """Write the files of the report; return the path of report.html."""
    built = [build(evaluated) for build in CHAPTERS]
    counters = [one for one in built if isinstance(one, ChapterBuilder)]
    for facts in evaluated.facts():
        for counter in counters:
            counter.add(facts)
    chapters = [
        chapter
        for build, one in zip(CHAPTERS, built, strict=True)
        for chapter in (
            _sourced(type(one), one.chapters()) if isinstance(one, ChapterBuilder) else _sourced(build, one)
        )
    ]
    report = report_of(evaluated.experiment, "does the advice help?", chapters, evaluated.results)
    return write_files(report, evaluated.folder)


def _sourced(maker: Callable[..., object], chapters: Iterable[Chapter]) -> list[Chapter]:
    source = f"{maker.__module__}.{maker.__name__}"
    return [chapter.model_copy(update={"source": source}) for chapter in chapters]


def write_actors(experiment: Experiment, played: Results) -> Path:
    """Write the report with a table of all actors; return the path of report.html."""
    rates = {actor: rates_of(arms, experiment.seed) for actor, arms in played.items()}
    reflects = [chapter("", "Each model writes the advice of its own arms.")] if experiment.eval.actors_reflect else []
    chapters = [*reflects, chapter("Solved by each actor", *_by_actor(experiment, rates))]
    return _written(write_actors, experiment, f"{len(played)} actors", chapters, played)


def _by_actor(experiment: Experiment, rates: Mapping[str, Rates]) -> Iterator[Part | Words]:
    tasks = min(of_actor.finished_tasks for of_actor in rates.values())
    solved = f"Share of {experiment.environment.name} tasks solved"
    yield f"{solved} (at least {tasks} of each actor), with 95% intervals over tasks."
    yield _actors(experiment, rates, {actor: one.finished for actor, one in rates.items() if one.finished_tasks})
    if any(of_actor.unfinished for of_actor in rates.values()):
        left = ", ".join(f"{of_actor.unfinished} of {of_actor.tasks} with {actor}" for actor, of_actor in rates.items())
        yield f"{solved}, unfinished tasks counted as failures. Unfinished in an arm: {left}."
        yield _actors(experiment, rates, {actor: of_actor.all_tasks for actor, of_actor in rates.items()})


def _actors(experiment: Experiment, rates: Mapping[str, Rates], arms: Results) -> Table:
    rows: list[Row] = [
        [
            actor,
            arm_cell(arm.name, arm.name.removeprefix(f"{actor}/")),
            *(interval_cell(rates[actor].intervals.of(arm.solved_by(trial))) for trial in range(len(arm.solved_NT))),
            number(arm.usage.prompt_tokens, ","),
            number(arm.usage.completion_tokens, ","),
            Cell(words="report", part=actor),
        ]
        for actor, of_actor in arms.items()
        for arm in of_actor
    ]
    header: Header = ["actor", "arm", *_trials(experiment), "tokens in", "tokens out", "more"]
    return table(header, rows, "Share of tasks solved with each actor.")


def write_repeats(experiment: Experiment, played: Results) -> Path:
    """Write the report with the tables of all repeats, unfinished tasks counted as failures.

    Return the path of report.html.
    """
    counted = {name: with_unfinished(arms) for name, arms in played.items()}
    left = sum(max(arm.incomplete for arm in arms) for arms in played.values())
    unfinished = f" {left} of them were left unfinished and count as failures." if left else ""
    tasks = next(iter(counted.values()))[0].solved_NT.shape[1]
    sentence = (
        f"Share of {tasks} {experiment.environment.name} tasks solved: mean and standard deviation over {len(played)} "
        f"repeats, each with other random numbers.{unfinished}"
    )
    chapters = [
        chapter("Solved over all repeats", sentence, _means(experiment, counted)),
        chapter("Solved in each repeat", _repeats(experiment, counted)),
    ]
    return _written(write_repeats, experiment, f"{len(played)} repeats", chapters, played)


def _means(experiment: Experiment, repeats: Results) -> Table:
    rows = list[Row]()
    for place, name in enumerate(experiment.eval.arms):
        shares_RN = [arms[place].solved_NT.mean(axis=1) for arms in repeats.values()]
        by_trial = zip(*shares_RN, strict=True)
        rows.append([name, *(number(fmean(shares), ".3f", f" ± {stdev(shares):.3f}") for shares in by_trial)])
    header: Header = ["arm", *_trials(experiment)]
    return table(header, rows, "Mean and standard deviation over the repeats.")


def _repeats(experiment: Experiment, repeats: Results) -> Table:
    rows: list[Row] = [
        [
            name,
            arm_cell(arm.name, arm.name.removeprefix(f"{name}/")),
            *(number(share, ".3f") for share in arm.solved_NT.mean(axis=1)),
            Cell(words="report", part=name),
        ]
        for name, arms in repeats.items()
        for arm in arms
    ]
    header: Header = ["repeat", "arm", *_trials(experiment), "more"]
    return table(header, rows, "Share of tasks solved in each repeat.")


def write_domains(played: Sequence[tuple[Experiment, Results]]) -> Path:
    """Write the report of the run with a table of all domains, unfinished tasks counted as failures.

    Return the path of report.html.
    """
    run = played[0][0].model_copy(update={"domain": ""})
    rows: list[Row] = [row for experiment, results in played for row in _domain(experiment, results)]
    header = ["domain", "arm", "tasks", "unfinished", "solved at trial 0", "solved by the last trial", "more"]
    sentence = (
        "Share of held-out tasks solved, with 95% intervals over tasks; unfinished tasks count as failures. The "
        "adapters are trained on the ratings of all domains."
    )
    shown = table(header, rows, "Share of the tasks of each domain that were solved.")
    return _written(
        write_domains,
        run,
        f"{len(played)} domains, one reflector",
        [chapter("Solved in each domain", sentence, shown)],
        {},
    )


def _domain(experiment: Experiment, results: Results) -> Iterator[Row]:
    for arms in results.values():
        rates = rates_of(arms, experiment.seed)
        for arm in rates.all_tasks:
            yield [
                experiment.domain,
                arm.name,
                number(rates.tasks),
                number(arm.incomplete),
                *(interval_cell(rates.intervals.of(arm.solved_by(trial))) for trial in (0, -1)),
                Cell(words="report", part=experiment.domain),
            ]


def _trials(experiment: Experiment) -> list[Column]:
    return trial_columns(range(experiment.loop.trials), "by trial")


def _written(
    write: Callable[..., Path], experiment: Experiment, title: str, chapters: Sequence[Chapter], played: Results
) -> Path:
    report = report_of(experiment, title, _sourced(write, chapters), chain.from_iterable(played.values()))
    return write_files(report, experiment.report_folder)
