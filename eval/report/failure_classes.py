"""Failure classes of attempts, counted by trial, as in Fig. 3b of Reflexion (NeurIPS version, section 4.1).

hallucination: the attempt has two or more consecutive identical actions to which the environment responded with the
same observation, or it went in a cycle, the sign of hallucination by which the stop heuristic of the same section ends
an attempt (`loop.repetitions`): more than Omega = 3 times the same action with the same observation.

inefficient planning: the attempt has at least epsilon = 30 actions. The paper says more than 30, but its stop
heuristic, like `loop.actions: 30`, ends an attempt at its 30th action, so no attempt would be in that class.

Only failed attempts are in a class, and an attempt may be in both.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.markdown import plain, share, table
from retroformer.records import Ending, Outcome, Trajectory

from ..measure.results import ArmResult

EPSILON = 30
"""Fewest actions of an attempt with inefficient planning."""
OMEGA = 3
"""Most times that an attempt without a cycle has the same action with the same observation."""
_NOTE = (
    "Share of tasks whose last attempt made by each trial failed and is in the class. *Hallucination*: two or more "
    "consecutive identical actions with the same observation, or a cycle, which is the same action with the same "
    f"observation more than {OMEGA} times. *Inefficient planning*: at least {EPSILON} actions. An attempt may be in "
    "both or in none."
)


def hallucinated(attempt: Trajectory) -> bool:
    """Return True if the agent repeated an action at once and got the same observation, or went in a cycle."""
    seen = [(step.action, step.observation) for step in attempt.steps]
    at_once = any(step == following for step, following in pairwise(seen))
    return at_once or attempt.ending is Ending.REPETITION or max(Counter(seen).values(), default=0) > OMEGA


def planned_inefficiently(attempt: Trajectory) -> bool:
    """Return True if the agent took at least 30 actions."""
    return len(attempt.steps) >= EPSILON


class ClassesByTrial:
    """Counts, for each arm and trial, of the tasks whose last attempt made by that trial is in a failure class.

    A solved task stays out of all classes; a task that the agent stopped trying stays in those of its last attempt. The
    training seeds of an arm are pooled.
    """

    def __init__(self, results: Sequence[ArmResult]) -> None:
        self._arms = {arm.name: arm.stored_names for arm in results}
        self._trials = len(results[0].solved_NT) if results else 0
        self._tasks: Counter[str] = Counter()
        self._counts = {arm.name: _Counts(self._trials, last_counts=arm.last_counts) for arm in results}

    def add(self, facts: TaskFacts) -> None:
        """Count one task; it is left out of arms without a trial 0."""
        for name, stored_names in self._arms.items():
            for stored in stored_names:
                first = facts.seeds[stored].attempts.get(0)
                if first is not None and first.outcome is not Outcome.INVALID:
                    self._tasks[name] += 1
                    self._counts[name].add(facts.seeds[stored])

    def render(self) -> str:
        """Render what the classes mean, and one row for each arm and class with a column for each trial."""
        rows = [
            [plain(name), title, *(share(count, self._tasks[name]) for count in counts)]
            for name, of_arm in self._counts.items()
            for title, counts in of_arm.rows
        ]
        header = ["arm", "class", *(f"trial {trial}" for trial in range(self._trials))]
        shown = table(header, rows, "Share of tasks in each failure class, by trial.")
        return f"{_NOTE}\n\n{shown}"


class _Counts:
    """Number of tasks in each class after each trial."""

    def __init__(self, trials: int, *, last_counts: bool) -> None:
        self._last_counts = last_counts
        self._hallucinated = [0] * trials
        self._inefficient = [0] * trials
        self._failed = [0] * trials

    def add(self, seed: SeedFacts) -> None:
        last: Trajectory | None = None
        for trial in range(len(self._failed)):
            made = seed.attempts.get(trial)
            # An attempt that the infrastructure spoiled says nothing about the agent.
            last = last if made is None or made.outcome is Outcome.INVALID else made
            if last is None:
                continue
            if last.outcome is Outcome.SUCCESS:
                if self._last_counts:
                    continue
                return  # A game that is won stays won, even if the agent plays it again.
            self._failed[trial] += 1
            self._hallucinated[trial] += hallucinated(last)
            self._inefficient[trial] += planned_inefficiently(last)

    @property
    def rows(self) -> tuple[tuple[str, list[int]], ...]:
        return (
            ("hallucination", self._hallucinated),
            ("inefficient planning", self._inefficient),
            ("all failures", self._failed),
        )
