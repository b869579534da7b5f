"""What lies behind the numbers: how attempts ended, what went wrong, what was written, and where it all comes from."""

from collections import Counter
from collections.abc import Sequence

import yaml

from eval.findings import Findings
from eval.outcome import ArmOutcome
from eval.table import quoted, table
from retroformer.arms import first_trial
from retroformer.config import Experiment
from retroformer.provenance import code_version, package_versions
from retroformer.records import Outcome

_EXAMPLES = 3
"""Failed tasks whose advice is shown, arm by arm."""
_ADVICE_SHOWN = 200
"""Characters of one piece of advice that are shown; the store has all."""


def endings(outcomes: Sequence[ArmOutcome]) -> str:
    """How often attempts ended in which way."""
    counts = {
        arm.name: Counter(
            attempt.ending.value for seed in arm.seeds for (_, trial), attempt in seed.attempts.items() if trial
        )
        for arm in outcomes
    }
    shared = outcomes[0].seeds[0].attempts
    first = Counter(attempt.ending.value for (_, trial), attempt in shared.items() if trial == 0)
    names = sorted(set(first).union(*counts.values()))
    rows = [["trial 0, shared", *(str(first[name]) for name in names)]]
    rows += [[f"{arm}, retries", *(str(count[name]) for name in names)] for arm, count in counts.items()]
    return table(["", *names], rows)


def invalid_causes(findings: Findings) -> str:
    """The commonest first; empty where nothing went wrong."""
    arms = [first_trial(findings.actor), *(seed.stored for arm in findings.outcomes for seed in arm.seeds)]
    causes = Counter(cause for arm in arms for cause in findings.store.invalid_causes(arm))
    return "\n".join(f"- {count} x {cause}" for cause, count in causes.most_common(10))


def written_examples(outcomes: Sequence[ArmOutcome]) -> str:
    """The first failures that every writing arm looked at, in the order of the split."""
    seeds = [seed for arm in outcomes for seed in arm.seeds]
    writing = [seed for seed in seeds if any(one.reflection.text for one in seed.reflections.values())]
    if not writing:
        return "No arm wrote anything."
    seen_by_all = [
        task_id
        for (task_id, trial) in writing[0].reflections
        if trial == 1 and all((task_id, 1) in seed.reflections for seed in writing)
    ]
    rows = []
    for task_id in seen_by_all[:_EXAMPLES]:
        for seed in writing:
            retry = seed.attempts.get((task_id, 1))
            result = "solved" if retry is not None and retry.outcome is Outcome.SUCCESS else "failed"
            text = quoted(seed.reflections[task_id, 1].reflection.text, _ADVICE_SHOWN)
            rows.append([task_id, seed.name, text, result])
    return table(["task", "arm", "advice after trial 0", "retry"], rows)


def origin(experiment: Experiment) -> str:
    """Commit, versions, and the whole page."""
    code = code_version()
    commit = f"`{code.commit}`" + (" with uncommitted changes" if code.dirty else "")
    versions = ", ".join(f"{name} {number}" for name, number in package_versions().items())
    page = yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False)
    return (
        f"Commit {commit}. Versions: {versions}. Every number can be traced to the attempts stored in "
        f"`{experiment.store_url}`.\n\nThe whole page:\n\n```yaml\n{page}```"
    )
