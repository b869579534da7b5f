"""runs/NAME/eval/report.md and report.html: the curve, the table, the paired differences, and where they come from."""

import base64
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import yaml

from eval.figure import draw_curve
from eval.outcome import ArmOutcome
from eval.page import to_html
from eval.statistics import DRAWS, bootstrap, mcnemar
from eval.verify import Verified
from retroformer.arms import FIRST_TRIAL, evaluation
from retroformer.config import Experiment
from retroformer.provenance import code_version, package_versions
from retroformer.records import Outcome, Task
from retroformer.store import Store

_EXAMPLES = 3
"""Failed tasks whose advice is shown, arm by arm."""
_SMALLEST_P = 0.0001
"""A smaller p-value is said to be smaller."""
_ADVICE_SHOWN = 200
"""Characters of one piece of advice that are shown; the store has all."""
_AUDITED = (
    "pairs",
    "train_accuracy",
    "held_out_pairs",
    "held_out_accuracy",
    "held_out_reflections",
    "held_out_correlation",
)
"""Of the reward model: correlation is Pearson's, of its scores with the realised ratings."""


class Findings(NamedTuple):
    """All that a report is made of."""

    experiment: Experiment
    tasks: Sequence[Task]
    outcomes: Sequence[ArmOutcome]
    verified: Sequence[Verified]
    store: Store


def write_report(findings: Findings) -> Path:
    """Write the picture, report.md and report.html; return the path of the page."""
    folder = findings.experiment.folder / "eval"
    folder.mkdir(parents=True, exist_ok=True)
    tasks = findings.outcomes[0].solved_NT.shape[1]
    picture = folder / "curve.png"
    title = f"{findings.experiment.environment.name}, {tasks} held-out tasks, trial 0 shared"
    draw_curve(findings.outcomes, title, findings.experiment.seed, picture)
    text = "\n\n".join(_sections(findings)) + "\n"
    (folder / "report.md").write_text(text, encoding="utf-8")
    encoded = base64.b64encode(picture.read_bytes()).decode()
    page = to_html(text, f"Retroformer: {findings.experiment.run}").replace(
        "curve.png", f"data:image/png;base64,{encoded}"
    )
    (folder / "report.html").write_text(page, encoding="utf-8")
    return folder / "report.html"


def _sections(findings: Findings) -> Iterable[str]:
    experiment, outcomes = findings.experiment, findings.outcomes
    tasks = outcomes[0].solved_NT.shape[1]
    yield f"# {experiment.run}: does the advice help?"
    yield _verdict(findings)
    yield "![Share of held-out tasks solved by each trial, one line an arm](curve.png)"
    yield (
        f"{tasks} of {len(findings.tasks)} held-out tasks of split `{experiment.environment.split}` were finished in "
        f"every arm. Brackets are 95 % percentile bootstrap intervals over tasks ({DRAWS:,} draws, "
        f"seed {experiment.seed}); they say nothing about other training seeds."
    )
    yield "## Solved by trial\n\n" + _table(_arm_header(experiment), [_arm_row(findings, arm) for arm in outcomes])
    yield (
        "## Differences after the last trial, paired by task\n\n"
        + _table(
            ["first arm", "second arm", "first - second", "only first solved", "only second solved", "McNemar p"],
            [_pair_row(first, second, experiment.seed) for first, second in _pairs(experiment, outcomes)],
        )
    )
    yield "## What was served\n\n" + _served(findings.verified)
    yield "## How attempts ended\n\n" + _endings(outcomes)
    if causes := _causes(findings):
        yield "## Why attempts were invalid\n\n" + causes
    if audit := _audit(experiment):
        yield "## The reward model\n\n" + audit
    yield "## What the arms wrote\n\n" + _examples(outcomes)
    yield "## Where this comes from\n\n" + _origin(experiment)


def _verdict(findings: Findings) -> str:
    """One sentence for every other arm, from its paired interval; an interval that covers 0 is said to."""
    outcomes = {arm.name: arm for arm in findings.outcomes}
    reference = outcomes.get(findings.experiment.eval.reference, findings.outcomes[0])
    lines = []
    for arm in findings.outcomes:
        if arm is reference:
            continue
        difference = bootstrap(arm.solved_NT[-1] - reference.solved_NT[-1], findings.experiment.seed)
        said = "solves more" if difference.low > 0 else "solves fewer" if difference.high < 0 else "cannot be told from"
        joint = "tasks than" if difference.excludes_zero else ""
        covers = "" if difference.excludes_zero else "; the interval covers 0"
        lines.append(f"- **{arm.name}** {said} {joint} *{reference.name}*: {difference}{covers}.".replace("  ", " "))
    return "\n".join(lines)


def _arm_header(experiment: Experiment) -> list[str]:
    trials = [f"by trial {index}" for index in range(experiment.loop.trials)]
    return ["arm", *trials, "last return", "unfinished", "invalid attempts", "tokens in", "tokens out", "dollars"]


def _arm_row(findings: Findings, arm: ArmOutcome) -> list[str]:
    seed = findings.experiment.seed
    return [
        arm.name,
        *(str(bootstrap(solved_T, seed)) for solved_T in arm.solved_NT),
        f"{arm.return_NT[-1].mean():.3f}",
        str(arm.incomplete),
        str(arm.invalid),
        f"{arm.usage.prompt_tokens:,}",
        f"{arm.usage.completion_tokens:,}",
        f"{arm.usage.dollars:.2f}",
    ]


def _pairs(experiment: Experiment, outcomes: Sequence[ArmOutcome]) -> list[tuple[ArmOutcome, ArmOutcome]]:
    """Every two arms once, the later of the page first, so that a gain of the trained over the frozen is positive."""
    return [(second, first) for first, second in combinations(outcomes, 2)]


def _pair_row(first: ArmOutcome, second: ArmOutcome, seed: int) -> list[str]:
    first_T, second_T = first.solved_NT[-1], second.solved_NT[-1]
    difference = bootstrap(first_T - second_T, seed)
    return [
        first.name,
        second.name,
        f"{difference}" + ("" if difference.excludes_zero else " (covers 0)"),
        str(int(((first_T == 1) & (second_T == 0)).sum())),
        str(int(((first_T == 0) & (second_T == 1)).sum())),
        f"{p_value:.4f}" if (p_value := mcnemar(first_T, second_T)) >= _SMALLEST_P else f"< {_SMALLEST_P}",
    ]


def _served(verified: Sequence[Verified]) -> str:
    if not verified:
        return "No model was asked for advice."
    changed = {True: "yes", False: "no: the adapter changes nothing here", None: "-"}
    rows = [
        [
            one.model,
            (one.adapter_sha256 or "none")[:12],
            "the folder of this run, by hash and pinned name"
            if one.verified
            else "not verified: the endpoint cannot say",
            " ".join(one.probe.split()).replace("|", "/"),
            changed[one.differs_from_base],
        ]
        for one in verified
    ]
    return _table(
        ["model", "adapter sha256", "is it the trained one", "greedy answer to the probe", "differs from base"], rows
    )


def _endings(outcomes: Sequence[ArmOutcome]) -> str:
    counts = {
        arm.name: Counter(attempt.ending.value for (_, trial), attempt in arm.attempts.items() if trial)
        for arm in outcomes
    }
    first = Counter(attempt.ending.value for (_, trial), attempt in outcomes[0].attempts.items() if trial == 0)
    names = sorted(set(first).union(*counts.values()))
    rows = [["trial 0, shared", *(str(first[name]) for name in names)]]
    rows += [[f"{arm}, retries", *(str(count[name]) for name in names)] for arm, count in counts.items()]
    return _table(["", *names], rows)


def _causes(findings: Findings) -> str:
    arms = [FIRST_TRIAL, *(evaluation(arm.name) for arm in findings.outcomes)]
    causes = Counter(cause for arm in arms for cause in findings.store.invalid_causes(arm))
    return "\n".join(f"- {count} x {cause}" for cause, count in causes.most_common(10))


def _audit(experiment: Experiment) -> str:
    """What the training of the reward model measured on tasks it had not seen."""
    path = experiment.folder / "reward" / "metrics.json"
    if not path.is_file():
        return ""
    measured = json.loads(path.read_text(encoding="utf-8"))
    return _table(["measure", "value"], [[name, f"{measured[name]:.3g}"] for name in _AUDITED if name in measured])


def _examples(outcomes: Sequence[ArmOutcome]) -> str:
    """The first failures that every writing arm looked at, in the order of the split."""
    writing = [arm for arm in outcomes if any(one.reflection.text for one in arm.reflections.values())]
    if not writing:
        return "No arm wrote anything."
    seen_by_all = [
        task_id
        for (task_id, trial) in writing[0].reflections
        if trial == 1 and all((task_id, 1) in arm.reflections for arm in writing)
    ]
    rows = []
    for task_id in seen_by_all[:_EXAMPLES]:
        for arm in writing:
            retry = arm.attempts.get((task_id, 1))
            result = "solved" if retry is not None and retry.outcome is Outcome.SUCCESS else "failed"
            text = " ".join(arm.reflections[task_id, 1].reflection.text.split()).replace("|", "/")
            rows.append([task_id, arm.name, shorten(text, _ADVICE_SHOWN, placeholder=" ...") or "(nothing)", result])
    return _table(["task", "arm", "advice after trial 0", "retry"], rows)


def _origin(experiment: Experiment) -> str:
    code = code_version()
    commit = f"`{code.commit}`" + (" with uncommitted changes" if code.dirty else "")
    versions = ", ".join(f"{name} {number}" for name, number in package_versions().items())
    page = yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False)
    return (
        f"Commit {commit}. Versions: {versions}. Every number can be traced to the attempts stored in "
        f"`{experiment.store_url}`.\n\nThe whole page:\n\n```yaml\n{page}```"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
