"""Share of tasks that each arm solves within a budget of tokens or calls per task, actor and reflector together.

Arms with the same number of trials do not cost the same: advice is paid for, and a better arm stops earlier.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from retroformer.environments.extras import ReportedArm, SeedFacts, TaskFacts
from retroformer.markdown import plain, table
from retroformer.records import Outcome, Trajectory, Usage

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Budgets, as shares of the largest spending on a task."""


@dataclass
class _Spending:
    """Spending on the tasks of an arm, in one currency."""

    to_solve: list[float] = field(default_factory=list)
    """Spending up to the success that counts at each task; infinite if there was none."""
    most: float = 0.0
    """Largest spending on one task."""

    def add(self, spent: Sequence[tuple[float, bool]], *, last_counts: bool) -> None:
        """Add a task: the spending on each trial, and whether it solved the task.

        The first success counts; if the last attempt does, the first after the last failure.
        """
        total, first = 0.0, math.inf
        for cost, solved in spent:
            total += cost
            if solved:
                first = min(first, total)
            elif last_counts:
                first = math.inf
        self.to_solve.append(first)
        self.most = max(self.most, total)


class EqualBudget:
    """Table of the arms at equal budgets."""

    def __init__(self, arms: Sequence[ReportedArm], *, last_counts: bool = False) -> None:
        self._arms, self._last_counts = arms, last_counts
        self._tokens, self._calls = ({arm.name: _Spending() for arm in arms} for _ in range(2))

    def add(self, facts: TaskFacts) -> None:
        """Count one task; training seeds of an arm count as tasks of their own."""
        for arm in self._arms:
            for stored in arm.stored_names:
                trials = [
                    (usage, attempt.outcome is Outcome.SUCCESS) for usage, attempt in _trials(facts.seeds[stored])
                ]
                if trials:
                    tokens = [(usage.prompt_tokens + usage.completion_tokens, won) for usage, won in trials]
                    self._tokens[arm.name].add(tokens, last_counts=self._last_counts)
                    calls = [(usage.calls, won) for usage, won in trials]
                    self._calls[arm.name].add(calls, last_counts=self._last_counts)

    def render(self) -> str:
        """Return the tables; empty if no arm has spent anything."""
        tables = (_table(self._tokens, "tokens"), _table(self._calls, "calls"))
        return "\n\n".join(text for text in tables if text)


def _trials(seed: SeedFacts) -> list[tuple[Usage, Trajectory]]:
    """Return each valid attempt in order, with the usage of the attempt and of the advice that it read."""
    return [
        (attempt.usage + seed.reflections[trial].usage if trial in seed.reflections else attempt.usage, attempt)
        for trial, attempt in sorted(seed.attempts.items())
        if attempt.outcome is not Outcome.INVALID
    ]


def _table(spending: dict[str, _Spending], unit: str) -> str:
    most = max((spent.most for spent in spending.values()), default=0.0)
    if not most:
        return ""
    budgets = sorted({math.ceil(share * most) for share in SHARES})
    rows = [
        [plain(name), *(f"{np.mean(np.array(spent.to_solve) <= budget):.3f}" for budget in budgets)]
        for name, spent in spending.items()
        if spent.to_solve
    ]
    header = ["arm", *(f"{budget:,} {unit} per task" for budget in budgets)]
    return table(header, rows, f"Share of tasks solved within a budget of {unit}.")
