"""runs/NAME/eval/report.md and report.html: the curve, the table, the paired differences, and where they come from."""

import base64
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from eval.account import endings, invalid_causes, origin, written_examples
from eval.examples import pick_examples, render_examples
from eval.failures import failure_classes, judgements
from eval.figure import draw_curve
from eval.findings import Findings
from eval.lesson import lessons_of
from eval.overoptimisation import gains, render_gains
from eval.page import to_html
from eval.rates import (
    difference_after_last,
    failed_at_first,
    paired_differences,
    solved_by_trial,
    solved_of_failed,
)
from eval.setting import actor_sentence, arms_table, is_yardstick, served_table
from eval.statistics import DRAWS
from eval.telemetry import habits, measure, render_habits, render_telemetry
from eval.training import reward_audit, trained_adapters, training_table
from eval.training_curves import curve_table, draw_training
from retroformer import durable
from retroformer.environments.sections import Alfworld
from retroformer.records import Task
from retroformer.redaction import redacted


def write_report(findings: Findings) -> Path:
    """Write the picture, report.md and report.html; return the path of the page."""
    folder = findings.folder
    folder.mkdir(parents=True, exist_ok=True)
    tasks = findings.outcomes[0].solved_NT.shape[1]
    title = f"{findings.experiment.environment.name}, {tasks} held-out tasks, trial 0 shared"
    draw_curve(findings.outcomes, title, findings.experiment.seed, folder / "curve.png")
    text = redacted("\n\n".join(_sections(findings))) + "\n"
    durable.write_text(folder / "report.md", text)
    page = to_html(text, f"Retroformer: {findings.experiment.run}")
    for picture in folder.glob("*.png"):
        encoded = base64.b64encode(picture.read_bytes()).decode()
        page = page.replace(f'src="{picture.name}"', f'src="data:image/png;base64,{encoded}"')
    durable.write_text(folder / "report.html", page)
    return folder / "report.html"


def _sections(findings: Findings) -> Iterable[str]:
    experiment, outcomes = findings.experiment, findings.outcomes
    yield f"# {experiment.run}: does the advice help?"
    if len(outcomes) > 1:
        yield _verdict(findings)
    yield "![Share of held-out tasks solved by each trial, one line an arm](curve.png)"
    yield _what_numbers_mean(findings)
    yield f"## Who played\n\n{actor_sentence(findings)}\n\n{arms_table(experiment)}"
    yield f"## Solved by trial\n\n{solved_by_trial(findings)}"
    failed = failed_at_first(findings)
    if failed and experiment.loop.trials > 1:
        yield f"## Of the {failed} tasks failed at trial 0\n\n{solved_of_failed(findings)}"
    if len(outcomes) > 1:
        yield f"## Differences after the last trial, paired by task\n\n{paired_differences(findings)}"
    yield f"## What was served\n\n{served_table(findings.verified)}"
    yield f"## How attempts ended\n\n{endings(outcomes)}\n\n{failure_classes(outcomes)}"
    if judged := judgements(outcomes):
        yield f"## What the agent made of its own attempts\n\n{judged}"
    if causes := invalid_causes(findings):
        yield f"## Why attempts were invalid\n\n{causes}"
    if trained := trained_adapters(experiment, [one.model for one in findings.verified]):
        draw_training(trained, findings.folder / "training.png")
        yield (
            f"## How the models were trained\n\n![Losses, score and divergence](training.png)\n\n"
            f"{curve_table(trained)}\n\n{training_table(trained)}\n\n{reward_audit(trained)}"
        )
    if gained := render_gains(gains(experiment, outcomes)):
        yield f"## What the reward model saw, and what the world\n\n{gained}"
    if isinstance(experiment.environment, Alfworld):
        yield from _about_advice(findings)
    else:
        yield f"## What the arms wrote\n\n{written_examples(outcomes)}"
    yield f"## Where this comes from\n\n{origin(experiment)}"


def _about_advice(findings: Findings) -> Iterable[str]:
    """What was advised, held against what the failures had shown; and examples of it."""
    written = {arm.name: [one for seed in arm.seeds for one in lessons_of(seed)] for arm in findings.outcomes}
    attempts = {id(one): one for arm in findings.outcomes for seed in arm.seeds for one in seed.attempts.values()}
    measured = render_telemetry([measure(name, lessons) for name, lessons in written.items()])
    yield f"## What the advice was like\n\n{measured}"
    if usual := render_habits(habits(written, attempts.values())):
        yield f"## Where the arms send to, and where things were found\n\n{usual}"
    if findings.experiment.eval.examples is None:
        yield f"## What the arms wrote\n\n{written_examples(findings.outcomes)}"
        return
    before, after = findings.experiment.eval.examples
    first_seeds = {arm.name: lessons_of(arm.seeds[0]) for arm in findings.outcomes}
    picked = pick_examples(first_seeds[before], first_seeds[after])
    yield f"## The same failures, two advisers\n\n{render_examples(picked, before, after)}"


def _verdict(findings: Findings) -> str:
    """One sentence for every other arm, from its paired interval; an interval that covers 0 is said to."""
    outcomes = {arm.name: arm for arm in findings.outcomes}
    reference = outcomes.get(findings.experiment.eval.reference, findings.outcomes[0])
    lines = []
    for arm in findings.outcomes:
        if arm is reference:
            continue
        difference = difference_after_last(arm, reference, findings.experiment.seed)
        said = "solves more" if difference.low > 0 else "solves fewer" if difference.high < 0 else "cannot be told from"
        joint = " tasks than" if difference.excludes_zero else ""
        covers = "" if difference.excludes_zero else "; the interval covers 0"
        name = f"**{arm.name}**" + (" (a yardstick)" if is_yardstick(findings.experiment, arm.name) else "")
        lines.append(f"- {name} {said}{joint} *{reference.name}*: {difference}{covers}.")
    return "\n".join(lines)


def _what_numbers_mean(findings: Findings) -> str:
    experiment, outcomes = findings.experiment, findings.outcomes
    seeds = "they say nothing about other training seeds."
    if any(arm.pooled for arm in outcomes):
        seeds = (
            "where an arm pools training seeds, a task counts with the mean over them, and the interval is that of "
            "these seeds on other tasks: how far seeds differ is seen in their own rows. An arm with one model says "
            "nothing about other training seeds."
        )
    return (
        f"{outcomes[0].solved_NT.shape[1]} of {len(findings.tasks)} held-out tasks of {_splits(findings.tasks)} were "
        f"finished in every arm. Brackets are 95 % percentile bootstrap intervals over tasks ({DRAWS:,} draws, "
        f"seed {experiment.seed}); {seeds}"
    )


def _splits(tasks: Sequence[Task]) -> str:
    """``split `valid_seen` ``, or several with the number of tasks of each."""
    counts = Counter(task.split for task in tasks)
    if len(counts) == 1:
        return f"split `{next(iter(counts))}`"
    return f"splits {' and '.join(f'`{split}` ({count})' for split, count in counts.items())}"
