"""Why attempts failed, as Reflexion sorts them (NeurIPS, section 4.1), and what the agent made of them itself."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eval.facts import TaskFacts
from eval.outcome import ArmOutcome
from eval.table import share, table
from retroformer.records import Outcome, Trajectory

_TOO_MANY_ACTIONS = 30
"""More of them are inefficient planning."""


@dataclass
class AttemptCounts:
    """How a group of attempts ended, why they failed, and what the agent made of them."""

    endings: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    hallucinated: int = 0
    inefficient: int = 0
    judged: Counter[tuple[bool, bool]] = field(default_factory=Counter)
    """(the agent was content, the task was solved) -> attempts that the agent judged itself."""

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
    """The attempts of trial 0, which all arms share, and the retries of each arm."""

    def __init__(self, outcomes: Sequence[ArmOutcome]) -> None:
        self._names = {seed.stored: f"{arm.name}, retries" for arm in outcomes for seed in arm.seeds}
        self.counts = {"trial 0, shared": AttemptCounts()} | {name: AttemptCounts() for name in self._names.values()}

    def add(self, facts: TaskFacts) -> None:
        """Count the attempts at one task."""
        if facts.first is not None:
            self.counts["trial 0, shared"].add(facts.first)
        for stored, seed in facts.seeds.items():
            for trial, attempt in seed.attempts.items():
                if trial:
                    self.counts[self._names[stored]].add(attempt)


def endings(groups: Mapping[str, AttemptCounts]) -> str:
    """How often attempts ended in which way."""
    names = sorted(set[str]().union(*(counts.endings for counts in groups.values())))
    rows = [[group, *(str(counts.endings[name]) for name in names)] for group, counts in groups.items()]
    return table(["", *names], rows)


def failure_classes(groups: Mapping[str, AttemptCounts]) -> str:
    """Failed attempts of each arm: in how many the agent hallucinated, or planned inefficiently; it may be both."""
    rows = [
        [
            name,
            str(counts.failed),
            share(counts.hallucinated, counts.failed),
            share(counts.inefficient, counts.failed),
        ]
        for name, counts in groups.items()
    ]
    return table(["", "failed attempts", "hallucination", "inefficient planning"], rows)


def hallucinated(attempt: Trajectory) -> bool:
    """Whether the agent did the same twice or more often and was answered the same."""
    return any(count > 1 for count in Counter((step.action, step.observation) for step in attempt.steps).values())


def planned_inefficiently(attempt: Trajectory) -> bool:
    """Whether the agent did more than 30 actions."""
    return len(attempt.steps) > _TOO_MANY_ACTIONS


def judgements(groups: Mapping[str, AttemptCounts]) -> str:
    """The agent's own evaluation held against the true outcome; empty where it was told the truth."""
    kinds = ((True, True), (False, True), (True, False), (False, False))
    rows = [
        [name, *(str(counts.judged[kind]) for kind in kinds), share(_right(counts.judged), counts.judged.total())]
        for name, counts in groups.items()
        if counts.judged
    ]
    header = ["", "TP: content, solved", "FN: not content, solved", "FP: content, failed", "TN: not content, failed"]
    return table([*header, "right"], rows) if rows else ""


def _right(counts: Counter[tuple[bool, bool]]) -> int:
    return counts[True, True] + counts[False, False]
