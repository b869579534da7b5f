"""How attempts ended, how many failures are in each failure class, and the agent's judgements of its attempts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retroformer.environments.extras import TaskFacts
from retroformer.markdown import plain, share, table
from retroformer.records import Outcome, Trajectory

from ..measure.results import ArmResult, first_trials
from .failure_classes import hallucinated, planned_inefficiently


@dataclass
class AttemptCounts:
    """Counts over a group of attempts: how they ended, why they failed, and how the agent judged them."""

    endings: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    hallucinated: int = 0
    inefficient: int = 0
    judged: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """Number of attempts that the agent judged itself, by (agent judged success, task solved)."""

    def add(self, attempt: Trajectory) -> None:
        """Count one more attempt."""
        self.endings[attempt.ending.value] += 1
        if attempt.outcome is Outcome.FAILURE:
            self.failed += 1
            self.hallucinated += hallucinated(attempt)
            self.inefficient += planned_inefficiently(attempt)
        if attempt.judged is not None:
            self.judged[attempt.judged, attempt.outcome is Outcome.SUCCESS] += 1


class AttemptGroups:
    """Counts over the attempts of each trial 0, which arms share, and over the retries of each arm."""

    def __init__(self, results: Sequence[ArmResult]) -> None:
        self._retries = {seed.stored: f"{arm.name}, retries" for arm in results for seed in arm.seeds}
        self._firsts = dict[str, str]()
        """Group of each trial 0, by the name in the store of the first arm that has it."""
        for trial, arms in first_trials(results).items():
            of_arms = ", ".join(arm.name for arm in arms)
            seed = next(seed for seed in arms[0].seeds if seed.first_trial == trial)
            self._firsts[seed.stored] = "trial 0, shared" if arms[0].shares_first else f"trial 0 of {of_arms}"
        self.counts = {name: AttemptCounts() for name in (*self._firsts.values(), *self._retries.values())}

    def add(self, facts: TaskFacts) -> None:
        """Count the attempts at one task."""
        for stored, seed in facts.seeds.items():
            for trial, attempt in seed.attempts.items():
                group = self._retries[stored] if trial else self._firsts.get(stored)
                if group is not None:
                    self.counts[group].add(attempt)


def endings(groups: Mapping[str, AttemptCounts]) -> str:
    """Render how often attempts ended in each way."""
    names = sorted(set[str]().union(*(counts.endings for counts in groups.values())))
    rows = [[plain(group), *(str(counts.endings[name]) for name in names)] for group, counts in groups.items()]
    return table(["arm", *names], rows, "Number of attempts by how they ended.")


def failure_classes(groups: Mapping[str, AttemptCounts]) -> str:
    """Render in how many failed attempts of each group the agent hallucinated or planned inefficiently, or both."""
    rows = [
        [
            plain(name),
            str(counts.failed),
            share(counts.hallucinated, counts.failed),
            share(counts.inefficient, counts.failed),
        ]
        for name, counts in groups.items()
    ]
    header = ["arm", "failed attempts", "hallucination", "inefficient planning"]
    return table(header, rows, "Failed attempts in which the agent hallucinated or planned inefficiently.")


def judgements(groups: Mapping[str, AttemptCounts]) -> str:
    """Render the agent's own judgements against the true outcomes; empty if it was given the true outcomes."""
    kinds = ((True, True), (False, True), (True, False), (False, False))
    rows = [
        [
            plain(name),
            *(str(counts.judged[kind]) for kind in kinds),
            share(_right(counts.judged), counts.judged.total()),
        ]
        for name, counts in groups.items()
        if counts.judged
    ]
    header = ["arm", "TP: content, solved", "FN: not content, solved", "FP: content, failed", "TN: not content, failed"]
    return table([*header, "right"], rows, "The agent's own judgements against the true outcomes.") if rows else ""


def _right(counts: Counter[tuple[bool, bool]]) -> int:
    return counts[True, True] + counts[False, False]
