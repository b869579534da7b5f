"""Report sections on causes of invalid attempts, examples of advice, and the provenance of the numbers."""

from collections.abc import Sequence

import yaml

from retroformer.arm_names import first_trial
from retroformer.environments.extras import TaskFacts
from retroformer.experiment.config import Experiment
from retroformer.markdown import code, fenced, plain, quoted, table
from retroformer.provenance import code_version, package_versions
from retroformer.records import Outcome

from ..measure.results import ArmResult
from .input import ReportInput

_CAUSES = 10
"""Most causes of invalid attempts that are shown."""
_EXAMPLES = 3
"""Number of failed tasks whose advice is shown for each arm."""
_ADVICE_SHOWN = 200
"""Most characters shown of one piece of advice; the store has all."""


def invalid_causes(report_input: ReportInput) -> str:
    """Render the causes of invalid attempts, most common first; empty if there are none."""
    arms = [first_trial(report_input.name), *(seed.stored for arm in report_input.results for seed in arm.seeds)]
    causes = report_input.store.cause_counts(arms, _CAUSES)
    return "\n".join(f"- {count} x {plain(cause)}" for cause, count in causes)


class WrittenExamples:
    """Examples of advice on the first failures, by task id, that every writing arm reflected on."""

    def __init__(self, results: Sequence[ArmResult]) -> None:
        self._names = {seed.stored: seed.name for arm in results for seed in arm.seeds}
        self._writing: set[str] = set()
        self._first_seen: dict[frozenset[str], list[TaskFacts]] = {}
        """First tasks by the set of arms that reflected on trial 0; the writing arms are known only at the end."""

    def add(self, facts: TaskFacts) -> None:
        """Record the advice about one task."""
        for stored, seed in facts.seeds.items():
            if any(advice.text for advice in seed.reflections.values()):
                self._writing.add(stored)
        arms_reflected = frozenset(stored for stored, seed in facts.seeds.items() if 1 in seed.reflections)
        tasks = self._first_seen.setdefault(arms_reflected, [])
        if len(tasks) < _EXAMPLES:
            tasks.append(facts)

    def render(self) -> str:
        """Render a Markdown table; empty if no arm wrote advice."""
        if not self._writing:
            return ""
        seen_by_all = [
            facts
            for arms_reflected, tasks in self._first_seen.items()
            if arms_reflected >= self._writing
            for facts in tasks
        ]
        chosen = sorted(seen_by_all, key=lambda facts: facts.task_id)[:_EXAMPLES]
        rows = [self._row(facts, stored) for facts in chosen for stored in self._names if stored in self._writing]
        header = ["task", "arm", "advice after trial 0", "retry"]
        return table(header, rows, "Advice on the first tasks that every writing arm reflected on.")

    def _row(self, facts: TaskFacts, stored: str) -> list[str]:
        seed = facts.seeds[stored]
        retry = seed.attempts.get(1)
        result = "not tried" if retry is None else "solved" if retry.outcome is Outcome.SUCCESS else "failed"
        text = quoted(seed.reflections[1].text, _ADVICE_SHOWN)
        return [plain(facts.task_id), plain(self._names[stored]), text, result]


def origin(experiment: Experiment) -> str:
    """Render the commit, the package versions and the resolved config."""
    version = code_version()
    commit = code(version.commit) + (" with uncommitted changes" if version.dirty else "")
    versions = ", ".join(f"{name} {number}" for name, number in package_versions().items())
    config = yaml.safe_dump(experiment.as_file(), sort_keys=False)
    return (
        f"Commit {commit}. Versions: {versions}. Every number can be traced to the attempts stored in "
        f"{code(str(experiment.store_url))}.\n\n{fenced(config, 'yaml', 'The config of the evaluation')}"
    )
