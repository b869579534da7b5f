"""runs/NAME/eval/report.md and report.html: curve, tables, paired differences and provenance."""

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from retroformer.experiment.config import Experiment
from retroformer.files import durable
from retroformer.records import Task
from retroformer.secrets.redaction import redacted

from ..measure.rates import Rates, failed_at_first, rates_of
from ..measure.results import ArmResult
from ..measure.statistics import DRAWS
from .endings import endings, failure_classes, judgements
from .figure import draw_curve
from .html import to_html
from .input import ReportInput
from .observations import Observations, observe
from .overoptimisation import gains, render_gains
from .provenance import invalid_causes, origin
from .rate_tables import paired_differences, render_views, solved_by_trial, solved_of_failed
from .stopping import stopping_rules
from .training import reward_audit, trained_adapters, training_table
from .training_curves import curve_table, draw_training
from .verdict import verdict
from .who_played import actor_sentence, arms_table, served_table


def write_report(report_input: ReportInput) -> Path:
    """Write the figures, report.md and report.html; return the path of report.html."""
    folder = report_input.folder
    folder.mkdir(parents=True, exist_ok=True)
    rates = rates_of(report_input.results, report_input.experiment.seed)
    draw_curve(rates, _title(report_input, rates), folder / "curve.png")
    text = redacted("\n\n".join(_sections(report_input, rates))) + "\n"
    durable.write_text(folder / "report.md", text)
    html = to_html(text, f"Retroformer: {report_input.experiment.name}")
    for picture in folder.glob("*.png"):
        encoded = base64.b64encode(picture.read_bytes()).decode()
        html = html.replace(f'src="{picture.name}"', f'src="data:image/png;base64,{encoded}"')
    durable.write_text(folder / "report.html", html)
    return folder / "report.html"


def _title(report_input: ReportInput, rates: Rates) -> str:
    name = report_input.experiment.environment.name
    if not rates.finished_tasks:
        return f"{name}, {rates.tasks} held-out tasks, unfinished ones counted as failures"
    dotted = f" (dotted: {rates.tasks}, unfinished as failures)" if rates.unfinished else ""
    return f"{name}, {rates.finished_tasks} held-out tasks{dotted}, trial 0 shared"


def _sections(report_input: ReportInput, rates: Rates) -> Iterable[str]:
    experiment, results, intervals = report_input.experiment, report_input.results, rates.intervals
    observed = observe(report_input)
    yield f"# {experiment.name}: does the advice help?"
    if len(results) > 1:
        yield verdict(experiment, rates)
    yield "![Share of held-out tasks solved by each trial, one line per arm](curve.png)"
    yield _how_to_read(report_input, rates)
    yield f"## Who played\n\n{actor_sentence(report_input)}\n\n{arms_table(experiment)}"
    yield f"## Solved by trial\n\n{render_views(rates, lambda arms: solved_by_trial(arms, intervals))}"
    if experiment.loop.trials > 1 and failed_at_first(rates.all_tasks):
        yield _of_failed(rates)
    if len(results) > 1:
        differences = render_views(rates, lambda arms: paired_differences(arms, intervals))
        yield f"## Differences after the last trial, paired by task\n\n{differences}"
    if equal := observed.budget.render():
        yield f"## Solved within equal budgets\n\n{equal}"
    if stopping_rules(results):
        yield f"## Stopping rules\n\n{render_views(rates, stopping_rules)}"
    yield f"## Served models\n\n{served_table(experiment, report_input.verified)}"
    groups = observed.groups.counts
    yield f"## How attempts ended\n\n{endings(groups)}\n\n{failure_classes(groups)}"
    yield f"## Failure classes by trial\n\n{observed.classes.render()}"
    yield f"## Actions of each task by trial\n\n{observed.actions.render()}"
    if judged := judgements(groups):
        yield f"## How the agent judged its own attempts\n\n{judged}"
    if causes := invalid_causes(report_input):
        yield f"## Why attempts were invalid\n\n{causes}"
    if trained := trained_adapters(experiment, report_input.models):
        draw_training(trained, report_input.folder / "training.png")
        yield (
            f"## How the models were trained\n\n![Losses, score and divergence](training.png)\n\n"
            f"{curve_table(trained)}\n\n{training_table(trained)}\n\n{reward_audit(trained)}"
        )
    if gains(experiment, rates.views[-1], intervals):
        gained = render_views(rates, lambda arms: render_gains(gains(experiment, arms, intervals)))
        yield f"## Gains in the reward model's score and in tasks solved\n\n{gained}"
    yield from _about_advice(experiment, observed)
    yield f"## Where this comes from\n\n{origin(experiment)}"


def _of_failed(rates: Rates) -> str:
    if not rates.unfinished:
        failed = failed_at_first(rates.finished)
        solved = solved_of_failed(rates.finished, rates.intervals)
        return f"## Solved of the {failed} tasks that failed at trial 0\n\n{solved}"

    def counted(arms: Sequence[ArmResult]) -> str:
        return f"Not solved at trial 0: {failed_at_first(arms)}.\n\n{solved_of_failed(arms, rates.intervals)}"

    return f"## Solved of the tasks that failed at trial 0\n\n{render_views(rates, counted)}"


def _about_advice(experiment: Experiment, observed: Observations) -> Iterable[str]:
    """Yield the form of the advice, the environment's own chapter, and examples of advice unless that has some."""
    if form := observed.telemetry.render():
        yield f"## How the reflections were written\n\n{form}"
    if retrieved := observed.retrieved.render():
        yield f"## Retrieved advice and what it brought\n\n{retrieved}"
    if leaks := observed.leaks.render():
        yield f"## Advice that gives the solution away\n\n{leaks}"
    chapters = [] if observed.chapter is None else list(observed.chapter.sections())
    for title, text in chapters:
        yield f"## {title}\n\n{text}"
    if observed.chapter is None or experiment.eval.examples is None:
        yield f"## Advice that the arms wrote\n\n{observed.written.render()}"


def _how_to_read(report_input: ReportInput, rates: Rates) -> str:
    experiment, results = report_input.experiment, report_input.results
    seeds = "they do not cover variation between training seeds."
    if any(arm.pooled for arm in results):
        seeds = (
            "if an arm pools training seeds, each task counts as the mean over them, and the interval covers other "
            "tasks with these seeds; the rows of the seeds show how much they differ. An arm with one model does not "
            "cover variation between training seeds."
        )
    return (
        f"{rates.finished_tasks} of {len(report_input.tasks)} held-out tasks of {_splits(report_input.tasks)} were "
        f"finished in every arm. {_unfinished(rates)} Brackets are 95% percentile bootstrap intervals over tasks "
        f"({DRAWS:,} draws, seed {experiment.seed}); {seeds}"
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
        return f"split `{next(iter(counts))}`"
    return f"splits {' and '.join(f'`{split}` ({count})' for split, count in counts.items())}"
