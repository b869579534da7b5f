"""runs/NAME/eval/report.md and report.html: the curve, the table, the paired differences, and where they come from."""

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from eval.account import invalid_causes, origin
from eval.failures import endings, failure_classes, judgements
from eval.figure import draw_curve
from eval.findings import Findings
from eval.observations import Observations, observe
from eval.outcome import ArmOutcome
from eval.overoptimisation import gains, render_gains
from eval.page import to_html
from eval.rates import (
    Rates,
    failed_at_first,
    paired_differences,
    rates_of,
    solved_by_trial,
    solved_of_failed,
    twice,
)
from eval.setting import actor_sentence, arms_table, served_table
from eval.statistics import DRAWS
from eval.training import reward_audit, trained_adapters, training_table
from eval.training_curves import curve_table, draw_training
from eval.verdict import verdict
from retroformer import durable
from retroformer.records import Task
from retroformer.redaction import redacted


def write_report(findings: Findings) -> Path:
    """Write the picture, report.md and report.html; return the path of the page."""
    folder = findings.folder
    folder.mkdir(parents=True, exist_ok=True)
    rates = rates_of(findings.outcomes, findings.experiment.seed)
    draw_curve(rates, _title(findings, rates), folder / "curve.png")
    text = redacted("\n\n".join(_sections(findings, rates))) + "\n"
    durable.write_text(folder / "report.md", text)
    page = to_html(text, f"Retroformer: {findings.experiment.run}")
    for picture in folder.glob("*.png"):
        encoded = base64.b64encode(picture.read_bytes()).decode()
        page = page.replace(f'src="{picture.name}"', f'src="data:image/png;base64,{encoded}"')
    durable.write_text(folder / "report.html", page)
    return folder / "report.html"


def _title(findings: Findings, rates: Rates) -> str:
    name = findings.experiment.environment.name
    if not rates.finished_tasks:
        return f"{name}, {rates.tasks} held-out tasks, unfinished ones counted as failures"
    dotted = f" (dotted: {rates.tasks}, unfinished as failures)" if rates.unfinished else ""
    return f"{name}, {rates.finished_tasks} held-out tasks{dotted}, trial 0 shared"


def _sections(findings: Findings, rates: Rates) -> Iterable[str]:
    experiment, outcomes, intervals = findings.experiment, findings.outcomes, rates.intervals
    observed = observe(findings)
    yield f"# {experiment.run}: does the advice help?"
    if len(outcomes) > 1:
        yield verdict(experiment, rates)
    yield "![Share of held-out tasks solved by each trial, one line an arm](curve.png)"
    yield _what_numbers_mean(findings, rates)
    yield f"## Who played\n\n{actor_sentence(findings)}\n\n{arms_table(experiment)}"
    yield f"## Solved by trial\n\n{twice(rates, lambda arms: solved_by_trial(arms, intervals))}"
    if experiment.loop.trials > 1 and failed_at_first(rates.all_tasks):
        yield _of_failed(rates)
    if len(outcomes) > 1:
        differences = twice(rates, lambda arms: paired_differences(arms, intervals))
        yield f"## Differences after the last trial, paired by task\n\n{differences}"
    yield f"## What was served\n\n{served_table(findings.verified)}"
    groups = observed.groups.counts
    yield f"## How attempts ended\n\n{endings(groups)}\n\n{failure_classes(groups)}"
    if judged := judgements(groups):
        yield f"## What the agent made of its own attempts\n\n{judged}"
    if causes := invalid_causes(findings):
        yield f"## Why attempts were invalid\n\n{causes}"
    if trained := trained_adapters(experiment, [one.model for one in findings.verified]):
        draw_training(trained, findings.folder / "training.png")
        yield (
            f"## How the models were trained\n\n![Losses, score and divergence](training.png)\n\n"
            f"{curve_table(trained)}\n\n{training_table(trained)}\n\n{reward_audit(trained)}"
        )
    if gains(experiment, rates.shown[-1], intervals):
        gained = twice(rates, lambda arms: render_gains(gains(experiment, arms, intervals)))
        yield f"## What the reward model saw, and what the world\n\n{gained}"
    yield from _about_advice(observed)
    yield f"## Where this comes from\n\n{origin(experiment)}"


def _of_failed(rates: Rates) -> str:
    if not rates.unfinished:
        failed = failed_at_first(rates.finished)
        return f"## Of the {failed} tasks failed at trial 0\n\n{solved_of_failed(rates.finished, rates.intervals)}"

    def counted(arms: Sequence[ArmOutcome]) -> str:
        return f"Not solved at trial 0: {failed_at_first(arms)}.\n\n{solved_of_failed(arms, rates.intervals)}"

    return f"## Of the tasks failed at trial 0\n\n{twice(rates, counted)}"


def _about_advice(observed: Observations) -> Iterable[str]:
    """What was advised, held against what the failures had shown; and examples of it."""
    if observed.advice is None:
        yield f"## What the arms wrote\n\n{observed.written.render()}"
        return
    yield f"## What the advice was like\n\n{observed.advice.telemetry}"
    if usual := observed.advice.habits:
        yield f"## Where the arms send to, and where things were found\n\n{usual}"
    if examples := observed.advice.examples:
        yield f"## The same failures, two advisers\n\n{examples}"
    else:
        yield f"## What the arms wrote\n\n{observed.written.render()}"


def _what_numbers_mean(findings: Findings, rates: Rates) -> str:
    experiment, outcomes = findings.experiment, findings.outcomes
    seeds = "they say nothing about other training seeds."
    if any(arm.pooled for arm in outcomes):
        seeds = (
            "where an arm pools training seeds, a task counts with the mean over them, and the interval is that of "
            "these seeds on other tasks: how far seeds differ is seen in their own rows. An arm with one model says "
            "nothing about other training seeds."
        )
    return (
        f"{rates.finished_tasks} of {len(findings.tasks)} held-out tasks of {_splits(findings.tasks)} were "
        f"finished in every arm. {_unfinished(rates)} Brackets are 95 % percentile bootstrap intervals over tasks "
        f"({DRAWS:,} draws, seed {experiment.seed}); {seeds}"
    )


def _unfinished(rates: Rates) -> str:
    if not rates.unfinished:
        return "No task was left unfinished, so rates are the same with unfinished tasks counted as failures."
    return (
        f"The infrastructure left {rates.unfinished} unfinished in an arm, so every rate is given twice: over the "
        "tasks that every arm finished, and over all tasks with unfinished ones counted as failures. From the first "
        "missing trial of an arm on, a task counts as unsolved and its return as 0; its earlier trials count as they "
        "were. Run the same command again to finish them."
    )


def _splits(tasks: Sequence[Task]) -> str:
    """``split `valid_seen` ``, or several with the number of tasks of each."""
    counts = Counter(task.split for task in tasks)
    if len(counts) == 1:
        return f"split `{next(iter(counts))}`"
    return f"splits {' and '.join(f'`{split}` ({count})' for split, count in counts.items())}"
