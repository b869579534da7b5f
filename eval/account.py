"""What lies behind the numbers: how attempts ended, what went wrong, what was written, and where it all comes from."""

from collections.abc import Sequence

import yaml

from eval.facts import TaskFacts
from eval.findings import Findings
from eval.outcome import ArmOutcome
from eval.table import quoted, table
from retroformer.arms import first_trial
from retroformer.config import Experiment
from retroformer.provenance import code_version, package_versions
from retroformer.records import Outcome

_CAUSES = 10
"""Causes of invalid attempts that are shown."""
_EXAMPLES = 3
"""Failed tasks whose advice is shown, arm by arm."""
_ADVICE_SHOWN = 200
"""Characters of one piece of advice that are shown; the store has all."""


def invalid_causes(findings: Findings) -> str:
    """The commonest first; empty where nothing went wrong."""
    arms = [first_trial(findings.actor), *(seed.stored for arm in findings.outcomes for seed in arm.seeds)]
    causes = findings.store.cause_counts(arms, _CAUSES)
    return "\n".join(f"- {count} x {cause}" for cause, count in causes)


class WrittenExamples:
    """The first failures that every writing arm looked at, in the order of the task ids."""

    def __init__(self, outcomes: Sequence[ArmOutcome]) -> None:
        self._names = {seed.stored: seed.name for arm in outcomes for seed in arm.seeds}
        self._writing: set[str] = set()
        self._first_seen: dict[frozenset[str], list[TaskFacts]] = {}
        """Arms that looked at the first failure -> the first tasks of which that is true. Who writes is known last."""

    def add(self, facts: TaskFacts) -> None:
        """Take in what was written about one task."""
        for stored, seed in facts.seeds.items():
            if any(one.reflection.text for one in seed.reflections.values()):
                self._writing.add(stored)
        looked = frozenset(stored for stored, seed in facts.seeds.items() if 1 in seed.reflections)
        first = self._first_seen.setdefault(looked, [])
        if len(first) < _EXAMPLES:
            first.append(facts)

    def render(self) -> str:
        """A table in Markdown."""
        if not self._writing:
            return "No arm wrote anything."
        seen_by_all = [
            facts for looked, first in self._first_seen.items() if looked >= self._writing for facts in first
        ]
        chosen = sorted(seen_by_all, key=lambda facts: facts.task_id)[:_EXAMPLES]
        rows = [self._row(facts, stored) for facts in chosen for stored in self._names if stored in self._writing]
        return table(["task", "arm", "advice after trial 0", "retry"], rows)

    def _row(self, facts: TaskFacts, stored: str) -> list[str]:
        seed = facts.seeds[stored]
        retry = seed.attempts.get(1)
        result = "not tried" if retry is None else "solved" if retry.outcome is Outcome.SUCCESS else "failed"
        text = quoted(seed.reflections[1].reflection.text, _ADVICE_SHOWN)
        return [facts.task_id, self._names[stored], text, result]


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
