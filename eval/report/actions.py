"""Number of actions for each task across trials, by arm (SALA, Table 2)."""

from collections.abc import Sequence
from dataclasses import dataclass

from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.markdown import plain, table
from retroformer.records import Outcome, Task, Trajectory

from ..measure.results import ArmResult

_ROWS = 30
"""Most rows of the table of single tasks: SALA's 14 tasks with two arms."""

_NOTE = (
    "Mean number of actions of the attempts of each trial, and of all attempts at a task together. *Solved* are the "
    "attempts that solved their task, and in the last column the tasks that were solved in the end. The number of "
    "attempts or tasks is in brackets."
)


@dataclass
class _Mean:
    """Mean of some counts; `-` if there are none."""

    total: int = 0
    count: int = 0

    def add(self, value: int) -> None:
        self.total += value
        self.count += 1

    def __str__(self) -> str:
        return f"{self.total / self.count:.1f} ({self.count})" if self.count else "-"


class _Actions:
    """Means over the tasks of one arm, either those that it solved or all."""

    def __init__(self, trials: int) -> None:
        self.by_trial = [_Mean() for _ in range(trials)]
        self.together = _Mean()


class ActionsByTrial:
    """Mean number of actions of an attempt in each trial, and of all attempts at a task together.

    Solved: the attempts that solved their task, and the tasks that were solved. All: every valid attempt and task.
    The training seeds of an arm are pooled.
    """

    def __init__(self, results: Sequence[ArmResult]) -> None:
        self._arms = {arm.name: arm.stored_names for arm in results}
        self._trials = len(results[0].solved_NT) if results else 0
        self._last_counts = any(arm.last_counts for arm in results)
        self._solved = {name: _Actions(self._trials) for name in self._arms}
        self._all = {name: _Actions(self._trials) for name in self._arms}

    def add(self, facts: TaskFacts) -> None:
        """Count one task."""
        for name, stored_names in self._arms.items():
            for stored in stored_names:
                self._add(name, facts.seeds[stored])

    def _add(self, name: str, seed: SeedFacts) -> None:
        attempts = {
            trial: attempt
            for trial, attempt in seed.attempts.items()
            if trial < self._trials and attempt.outcome is not Outcome.INVALID
        }
        if not attempts:
            return
        for trial, attempt in attempts.items():
            self._all[name].by_trial[trial].add(len(attempt.steps))
            if attempt.outcome is Outcome.SUCCESS:
                self._solved[name].by_trial[trial].add(len(attempt.steps))
        together = sum(len(attempt.steps) for attempt in attempts.values())
        self._all[name].together.add(together)
        solving = [trial for trial, attempt in attempts.items() if attempt.outcome is Outcome.SUCCESS]
        if max(attempts) in solving or (solving and not self._last_counts):
            self._solved[name].together.add(together)

    def render(self) -> str:
        """Render what is counted, and two rows for each arm."""
        rows = [
            [plain(name), title, *map(str, actions[name].by_trial), str(actions[name].together)]
            for name in self._arms
            for title, actions in (("solved", self._solved), ("all", self._all))
        ]
        header = ["arm", "tasks", *(f"trial {trial}" for trial in range(self._trials)), "all trials"]
        shown = table(header, rows, "Mean number of actions, by trial and at a task together.")
        return f"{_NOTE}\n\n{shown}"


class ActionsOfTasks:
    """Number of actions of each attempt at the first tasks, by arm and trial (SALA, Table 2 task by task)."""

    def __init__(self, tasks: Sequence[Task], results: Sequence[ArmResult]) -> None:
        self._names = {seed.stored: seed.name for arm in results for seed in arm.seeds}
        self._trials = len(results[0].solved_NT) if results else 0
        self._shown = [task.id for task in tasks][: max(1, _ROWS // max(1, len(self._names)))]
        self._tasks = len(tasks)
        self._rows = dict[str, list[list[str]]]()

    def add(self, facts: TaskFacts) -> None:
        """Note the attempts at one task, if it is among those that are shown."""
        if facts.task_id in self._shown:
            self._rows[facts.task_id] = [
                [
                    plain(facts.task_id),
                    plain(name),
                    *(_length(facts.seeds[stored].attempts.get(trial)) for trial in range(self._trials)),
                ]
                for stored, name in self._names.items()
            ]

    def render(self) -> str:
        """Render a row for each of these tasks and each arm, in the order in which the tasks are played."""
        rows = [row for task_id in self._shown for row in self._rows.get(task_id, [])]
        header = ["task", "arm", *(f"trial {trial}" for trial in range(self._trials))]
        of_all = "" if len(self._shown) == self._tasks else f", the first {len(self._shown)} of {self._tasks} tasks"
        return table(header, rows, f"Number of actions of each attempt{of_all}.")


def _length(attempt: Trajectory | None) -> str:
    """Render `13, solved` or `49`; a dash if there is no valid attempt."""
    if attempt is None or attempt.outcome is Outcome.INVALID:
        return "-"
    solved = ", solved" if attempt.outcome is Outcome.SUCCESS else ""
    return f"{len(attempt.steps)}{solved}"
