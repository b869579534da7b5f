"""Compares arms on held-out tasks, and writes runs/NAME/eval: the report of an evaluation, or of all its repetitions.

Arms play the same tasks with the same seeds, and share a trial 0 if its conditions are equal. With several actors,
repeats (Reflexion, Table 4) or domains, each has its report, and a table shows all.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal

from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.environments.extras import ChapterBuilder
from retroformer.environments.registry import extras
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.files import document as doc
from retroformer.method.records import Task
from retroformer.run.arm_names import first_trial
from retroformer.run.ledger import Ledger
from retroformer.run.store import open_store

from ..measure.results import ArmResult, arm_results
from ..measure.statistics import Rates
from ..play.evaluation import Evaluation, open_evaluations
from ..play.order import play_arms
from ..play.preflight import preflight, repetitions
from ..play.verify import verify_models
from . import advice, attempts, conclusion, costs, headline, overoptimisation, setting, solved, telemetry, training
from .files import write_files
from .report_input import ReportInput


def _of_environment(evaluation: ReportInput) -> ChapterBuilder | Iterable[doc.Chapter]:
    chapters = extras(evaluation.experiment.environment).chapters
    return chapters(evaluation.results) if chapters else ()


CHAPTERS: tuple[Callable[[ReportInput], ChapterBuilder | Iterable[doc.Chapter]], ...] = (
    headline.front,
    conclusion.MissingGain,
    solved.planned_comparisons,
    setting.ArmDescriptions,
    solved.by_trial,
    solved.differences,
    costs.EqualBudget,
    costs.arm_costs,
    solved.stopping,
    setting.served_models,
    attempts.AttemptGroups,
    attempts.FailureClasses,
    attempts.ActionsOfTasks,
    training.training,
    setting.stage_configs,
    overoptimisation.score_gains,
    telemetry.AdviceTelemetry,
    advice.Leaks,
    _of_environment,
    advice.Examples,
    setting.origin,
)
"""What computes the chapters, in order, each in a module of its topic that takes its numbers from `eval.measure`.

Functions, and classes that count the stored facts of each task first.
"""

Kind = Literal["actor", "repeat", "domain"]
HEADINGS: Mapping[Kind, str] = MappingProxyType(
    {"actor": "Solved by each actor", "repeat": "Solved in each repeat", "domain": "Solved in each domain"}
)
Results = Mapping[str, Sequence[ArmResult]]
"""Results of arms by actor or repeat; of an evaluation without either, under the empty name."""


async def compare_arms(*configs: Config) -> str:
    """Play what the store lacks and write the reports; return a line with the path of the one about all.

    `configs` are one config, or the domains of one. Raises RetroformerError: a server serves another model than the
    trained one, tasks overlap with training, or some tasks are unfinished (the report is still written if at least one
    was played).
    """
    held_out = [on_held_out_split(config) for config in configs]
    # Everything that can be refused is refused before the first domain plays.
    tasks = preflight(*(config.experiment for config in held_out))
    unfinished = list[str]()
    played = []
    for config, chosen in zip(held_out, tasks, strict=True):
        played.append((config.experiment, await _compare(config, chosen, unfinished)))
    folder = played[0][0].report_folder
    if len(played) > 1:
        run = played[0][0].model_copy(update={"domain": ""})
        by_domain = {domain.domain: list(chain.from_iterable(results.values())) for domain, results in played}
        trained = doc.chapter("", "The adapters are trained on the ratings of all domains.")
        folder = write_parts(run, "domain", by_domain, trained).parent
    path = f"report: {folder / 'report.html'}"
    if unfinished:
        raise InfrastructureFailure("\n".join((path, *unfinished)))
    return path


def on_held_out_split(config: Config) -> Config:
    """Return the config with the first held-out split in place of the training split; it can play the others, too."""
    experiment = config.experiment
    environment = experiment.environment.model_copy(update={"split": experiment.held_out_splits[0]})
    return replace(config, experiment=experiment.model_copy(update={"environment": environment}))


async def _compare(config: Config, tasks: tuple[Task, ...], unfinished: list[str]) -> Results:
    """Play all arms with one actor, or in one repeat, after another, and write the reports.

    Adds a sentence to `unfinished` for each actor or repeat with unfinished tasks. The conditions of every actor are
    checked before the first one plays.
    """
    experiment, results = config.experiment, dict[str, Sequence[ArmResult]]()
    configs = {name: replace(config, experiment=repetition) for name, repetition in repetitions(experiment).items()}
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        for name, repetition in configs.items() if len(configs) > 1 else ():
            async with open_evaluations(repetition, ledger, tasks, name):
                pass  # Opening them checks their conditions.
        for name, repetition in configs.items():
            async with open_evaluations(repetition, ledger, tasks, name) as evaluations:
                own, components = evaluations[0].experiment, evaluations[0].components
                verified = await verify_models(own, components, store, own.eval.reflector_models)
                for evaluation in evaluations:
                    await play_arms(evaluation)
                    arms = results[evaluation.name] = results_of(evaluation)
                    rates, actor = Rates(arms), components.actor_sha256
                    write_report(
                        ReportInput(evaluation.experiment, tasks, rates, verified, store, actor, evaluation.name)
                    )
                    if (worst := max(arms, key=lambda arm: arm.incomplete)).incomplete:
                        unfinished.append(_left_unfinished(evaluation, worst, len(tasks)))
    if experiment.eval.actors:
        who = [doc.chapter("", "Each model writes the advice of its own arms.")] * experiment.eval.actors_reflect
        write_parts(experiment, "actor", results, *who)
    elif experiment.eval.repeats > 1:
        write_parts(experiment, "repeat", results, over_repeats(experiment, results))
    return results


def _left_unfinished(evaluation: Evaluation, arm: ArmResult, tasks: int) -> str:
    # An attempt at trial 0 is stored apart from the arms that share it.
    names = [*evaluation.stored_names[arm.name], *evaluation.first_trials]
    cause = next(filter(None, map(evaluation.store.last_cause, names)), "the budget is spent")
    return (
        f"{arm.incomplete} of {tasks} tasks are left unfinished in arm {arm.name!r}; the report shows rates without "
        "them, and with them counted as failures: run the same command again to go on, unless the cause will last. "
        f"The last one: {cause}"
    )


def results_of(evaluation: Evaluation) -> list[ArmResult]:
    """Return the results of all arms. Raises MissingInput if no task could be played."""
    experiment, store, tasks = evaluation.experiment, evaluation.store, evaluation.tasks
    firsts = {stored: arm.first_trial for stored, arm in evaluation.arms.items()}
    if all(store.played_tasks(first).isdisjoint(task.id for task in tasks) for first in firsts.values()):
        cause = next(filter(None, map(store.last_cause, firsts.values())), "no arm is named")
        raise MissingInput(f"No task could be played, so nothing can be compared: {cause}")
    return arm_results(
        store,
        tasks,
        evaluation.stored_names,
        experiment.loop.trials,
        first_trial(evaluation.name),
        firsts,
        last_counts=experiment.evaluator.last_counts,
    )


def write_report(evaluation: ReportInput) -> Path:
    built = [(build, build(evaluation)) for build in CHAPTERS]
    counters = [one for _, one in built if isinstance(one, ChapterBuilder)]
    for facts in evaluation.facts():
        for counter in counters:
            counter.add(facts)
    chapters = list[doc.Chapter]()
    for build, one in built:
        maker, made = (type(one), one.chapters()) if isinstance(one, ChapterBuilder) else (build, one)
        chapters += _add_source(maker, made)
    title = "does the advice help?"
    return write_files(evaluation.experiment, evaluation.folder, title, chapters, evaluation.results)


def _add_source(maker: Any, chapters: Iterable[doc.Chapter]) -> Iterator[doc.Chapter]:
    """Yield chapters with the name of the function or class that computed them."""
    for made in chapters:
        yield made.model_copy(update={"source": f"{maker.__module__}.{maker.__name__}"})


def write_parts(
    experiment: Experiment, kind: Kind, played: Mapping[str, Sequence[ArmResult]], *before: doc.Chapter
) -> Path:
    """Write the report with a table of all actors, repeats or domains, below some chapters; return its path."""
    rates = {name: Rates(arms) for name, arms in played.items()}
    trials = max(len(arm.solved_NT) for arms in played.values() for arm in arms)
    share = "Share of held-out tasks solved, with 95% intervals over tasks"
    parts = list[doc.Part | doc.Words]()
    if finished := {name: one.finished for name, one in rates.items() if one.finished_tasks}:
        parts.append(_parts_table(kind, finished, trials, f"{share}."))
    if any(one.unfinished for one in rates.values()):
        left = ", ".join(f"{one.unfinished} of {one.tasks} with {name}" for name, one in rates.items())
        parts.append(f"Unfinished in an arm: {left}.")
        all_tasks = {name: one.all_tasks for name, one in rates.items()}
        parts.append(_parts_table(kind, all_tasks, trials, f"{share}, unfinished tasks counted as failures."))
    chapters = [*before, doc.chapter(HEADINGS[kind], *parts)]
    # The arms of a domain are in the store of the domain.
    linked = [] if kind == "domain" else list(chain.from_iterable(played.values()))
    title = f"{len(played)} {kind}s" + ", one reflector" * (kind == "domain")
    return write_files(experiment, experiment.report_folder, title, _add_source(write_parts, chapters), linked)


def _parts_table(kind: Kind, arms: Mapping[str, Sequence[ArmResult]], trials: int, caption: str) -> doc.Table:
    no_trial: doc.Row = {doc.trial_column(trial, "by trial"): doc.DASH for trial in range(trials)}
    return doc.table(
        [
            {
                kind: name,
                "arm": doc.arm_cell(arm.name, arm.name.removeprefix(f"{name}/")),
                "tasks": arm.solved_NT.shape[1],
                "unfinished": arm.incomplete,
                **no_trial,
                **solved.shares_by_trial(arm),
                "tokens in": doc.number(arm.usage.prompt_tokens, ","),
                "tokens out": doc.number(arm.usage.completion_tokens, ","),
                "more": doc.Cell(words="report", part=name),
            }
            for name, of_part in arms.items()
            for arm in of_part
        ],
        caption,
    )


def over_repeats(experiment: Experiment, played: Results) -> doc.Chapter:
    """Return the mean and standard deviation over all repeats, unfinished tasks counted as failures."""

    def mean(arms: Sequence[ArmResult], trial: int) -> doc.Cell:
        shares = [arm.share_solved(trial) for arm in arms]
        return doc.number(fmean(shares), ".3f", f" ± {stdev(shares):.3f}")

    trials = range(experiment.loop.trials)
    rows: list[doc.Row] = [
        {"arm": arm, **{doc.trial_column(trial, "by trial"): mean(arms, trial) for trial in trials}}
        for arm, *arms in zip(experiment.eval.arms, *played.values(), strict=True)
    ]
    caption = (
        f"Share of tasks solved, unfinished ones counted as failures: mean and standard deviation over {len(played)} "
        "repeats, each with other random numbers."
    )
    return doc.chapter("Solved over all repeats", doc.table(rows, caption))
