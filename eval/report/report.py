"""runs/NAME/eval: the report with its headline, figures, tables, paired differences and provenance."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from retroformer.markdown import code, plain
from retroformer.records import Task

from ..measure.rates import Rates, failed_at_first, rates_of, with_seeds
from ..measure.results import ArmResult
from ..measure.statistics import DRAWS
from .document import Figure, Report
from .endings import endings, failure_classes, judgements
from .figure import difference_figure, solved_figure
from .files import place_of, write_files
from .input import ReportInput
from .making import making
from .observations import Observations, observe
from .overoptimisation import gains, render_gains
from .planned import planned
from .provenance import invalid_causes, origin
from .rate_tables import paired_differences, render_views, solved_by_trial, solved_of_failed
from .stage_configs import stage_configs
from .stopping import stopping_rules
from .training import TrainedAdapter, reward_audit, trained_adapters, training_table
from .training_curves import curve_table, training_figures
from .verdict import reference_of, verdict
from .who_played import actor_sentence, arms_table, served_table


def write_report(report_input: ReportInput) -> Path:
    """Write the files of the report; return the path of report.html."""
    experiment = report_input.experiment
    rates = rates_of(report_input.results, experiment.seed)
    trained = trained_adapters(experiment, report_input.models)
    front = [solved_figure(experiment, rates)]
    if len(report_input.results) > 1:
        front.append(difference_figure(rates, reference_of(experiment, rates)))
    curves = training_figures(trained)
    report = Report(
        title=f"{experiment.name}: does the advice help?",
        run=experiment.name,
        place=place_of(experiment),
        text="\n\n".join(_sections(report_input, rates, front, trained, curves)) + "\n",
        figures=(*front, *curves),
        arms=arms_of(report_input.results),
    )
    return write_files(report, report_input.folder)


def arms_of(results: Iterable[ArmResult]) -> dict[str, tuple[str, ...]]:
    """Return the names in the store of each arm and of each training seed."""
    return {
        result.name: result.stored_names if isinstance(result, ArmResult) else (result.stored,)
        for result in with_seeds(list(results))
    }


def _sections(
    report_input: ReportInput,
    rates: Rates,
    front: Sequence[Figure],
    trained: Sequence[TrainedAdapter],
    curves: Sequence[Figure],
) -> Iterable[str]:
    experiment, results, intervals = report_input.experiment, report_input.results, rates.intervals
    observed = observe(report_input)
    yield f"# {plain(experiment.name)}: does the advice help?"
    if len(results) > 1:
        yield verdict(experiment, rates)
    yield from (figure.markdown for figure in front)
    yield _how_to_read(report_input, rates)
    if comparisons := experiment.eval.comparisons:
        shown = planned(comparisons, rates, report_input.store, report_input.clusters)
        yield f"## Planned comparisons\n\n{shown}"
    yield f"## Who played\n\n{actor_sentence(report_input)}\n\n{arms_table(experiment, observed.placebos)}"
    yield f"## Solved by trial\n\n{render_views(rates, lambda arms: solved_by_trial(arms, intervals))}"
    if experiment.loop.trials > 1 and failed_at_first(rates.all_tasks).any():
        yield _of_failed(rates)
    if len(results) > 1:
        differences = render_views(rates, lambda arms: paired_differences(arms, intervals))
        yield f"## Differences after the last trial, paired by task\n\n{differences}"
    if equal := observed.budget.render():
        yield f"## Solved within equal budgets\n\n{equal}"
    if made := making(experiment, results):
        yield f"## What the arms cost to make and to use\n\n{made}"
    if stopping_rules(results):
        yield f"## Stopping rules\n\n{render_views(rates, stopping_rules)}"
    if report_input.verified:
        yield f"## Served models\n\n{served_table(experiment, report_input.verified)}"
    yield from _about_attempts(report_input, observed)
    yield from _about_training(report_input, rates, trained, curves)
    yield from _about_advice(observed)
    yield f"## Where this comes from\n\n{origin(experiment)}"


def _about_attempts(report_input: ReportInput, observed: Observations) -> Iterable[str]:
    """Yield how attempts ended and failed, what they took, how the agent judged them, and why some were invalid."""
    groups = observed.groups.counts
    yield f"## How attempts ended\n\n{endings(groups)}\n\n{failure_classes(groups)}"
    yield f"## Failure classes by trial\n\n{observed.classes.render()}"
    yield f"## Actions of each task by trial\n\n{observed.actions.render()}\n\n{observed.tasks.render()}"
    if judged := judgements(groups):
        yield f"## How the agent judged its own attempts\n\n{judged}"
    if causes := invalid_causes(report_input):
        yield f"## Why attempts were invalid\n\n{causes}"


def _about_training(
    report_input: ReportInput, rates: Rates, trained: Sequence[TrainedAdapter], curves: Sequence[Figure]
) -> Iterable[str]:
    """Yield how the models were trained and with which settings, and whether the reward model was over-optimised."""
    experiment = report_input.experiment
    if trained:
        figures = "\n\n".join(figure.markdown for figure in curves)
        yield (
            f"## How the models were trained\n\n{figures}\n\n{curve_table(trained)}\n\n{training_table(trained)}"
            f"\n\n{reward_audit(trained)}"
        )
    if configs := stage_configs(experiment, trained):
        yield f"## What each stage ran with\n\n{configs}"
    if gains(experiment, rates.views[-1], rates.intervals):
        gained = render_views(rates, lambda arms: render_gains(gains(experiment, arms, rates.intervals)))
        yield f"## Gains in the reward model's score and in tasks solved\n\n{gained}"


def _of_failed(rates: Rates) -> str:
    if not rates.unfinished:
        failed = failed_at_first(rates.finished).sum()
        solved = solved_of_failed(rates.finished, rates.intervals)
        return f"## Solved of the {failed} tasks that failed at trial 0\n\n{solved}"

    def counted(arms: Sequence[ArmResult]) -> str:
        return f"Not solved at trial 0: {failed_at_first(arms).sum()}.\n\n{solved_of_failed(arms, rates.intervals)}"

    return f"## Solved of the tasks that failed at trial 0\n\n{render_views(rates, counted)}"


def _about_advice(observed: Observations) -> Iterable[str]:
    """Yield the form of the advice, the environment's own chapter, and examples of advice."""
    if form := observed.telemetry.render():
        yield f"## How the reflections were written\n\n{form}"
    if retrieved := observed.retrieved.render():
        yield f"## Retrieved advice and what it brought\n\n{retrieved}"
    if leaks := observed.leaks.render():
        yield f"## Advice that gives the solution away\n\n{leaks}"
    for title, text in observed.chapter.sections() if observed.chapter else ():
        yield f"## {title}\n\n{text}"
    if written := observed.written.render():
        yield f"## Advice that the arms wrote\n\n{written}"


def _how_to_read(report_input: ReportInput, rates: Rates) -> str:
    experiment, results = report_input.experiment, report_input.results
    seeds = "they do not cover variation between training seeds."
    if any(arm.pooled for arm in results):
        seeds = (
            "if an arm pools training seeds, seeds and tasks are resampled together, and the interval covers other "
            "tasks and other training seeds (with few seeds it is a little too narrow); *with these seeds* gives the "
            "interval over tasks alone. An arm with one model does not cover variation between training seeds."
        )
    stop = " Each arm, and each of its training seeds, ended after its first retry that solved no further task."
    return (
        f"{rates.finished_tasks} of {len(report_input.tasks)} held-out tasks of {_splits(report_input.tasks)} were "
        f"finished in every arm. {_unfinished(rates)} Brackets are 95% percentile bootstrap intervals over tasks "
        f"({DRAWS:,} draws, seed {experiment.seed}); {seeds}{stop if experiment.eval.stop == 'no_gain' else ''}"
    )


def _unfinished(rates: Rates) -> str:
    if not rates.unfinished:
        return "No task was left unfinished."
    return (
        f"The infrastructure left {rates.unfinished} tasks unfinished in some arm, so every rate is given twice: over "
        "the tasks that every arm finished, and over all tasks with unfinished ones counted as failures. From the "
        "first missing trial of an arm on, a task counts as unsolved with return 0; earlier trials keep their results. "
        "Run the same command again to finish them."
    )


def _splits(tasks: Sequence[Task]) -> str:
    """Render ``split `valid_seen` ``, or several splits with the number of tasks of each."""
    counts = Counter(task.split for task in tasks)
    if len(counts) == 1:
        return f"split {code(next(iter(counts)))}"
    return f"splits {' and '.join(f'{code(split)} ({count})' for split, count in counts.items())}"
