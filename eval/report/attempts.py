"""Chapters on attempts: how they ended and failed, what they took, how the agent judged them, and why some are invalid.

Failure classes are those of Fig. 3b of Reflexion (NeurIPS version, section 4.1):

hallucination: the attempt has two or more consecutive identical actions to which the environment responded with the
same observation, or it went in a cycle, the sign of hallucination by which the stop heuristic of the same section ends
an attempt (`loop.repetitions`): more than Omega = 3 times the same action with the same observation.

inefficient planning: the attempt has at least epsilon = 30 actions. The paper says more than 30, but its stop
heuristic, like `loop.actions: 30`, ends an attempt at its 30th action, so no attempt would be in that class.

Only failed attempts are in a class, and an attempt may be in both.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.files.document import (
    DASH,
    Cell,
    Chapter,
    Header,
    Listing,
    Table,
    arm_cell,
    chapter,
    emphasis,
    number,
    share,
    table,
    trial_columns,
)
from retroformer.method.records import Ending, Outcome, Task, Trajectory

from ..measure.results import ArmResult, first_trials
from .evaluation import Evaluated, each_seed

EPSILON = 30
"""Fewest actions of an attempt with inefficient planning."""
OMEGA = 3
"""Most times that an attempt without a cycle has the same action with the same observation."""
_CAUSES = 10
"""Most causes of invalid attempts that are shown."""
_ROWS = 30
"""Most rows of the table of single tasks: SALA's 14 tasks with two arms."""
_CLASSES_NOTE = (
    "Share of tasks whose last attempt made by each trial failed and is in the class. ",
    emphasis("Hallucination"),
    ": two or more consecutive identical actions with the same observation, or a cycle, which is the same action with "
    f"the same observation more than {OMEGA} times. ",
    emphasis("Inefficient planning"),
    f": at least {EPSILON} actions. An attempt may be in both or in none.",
)
_ACTIONS_NOTE = (
    "Mean number of actions of the attempts of each trial, and of all attempts at a task together. ",
    emphasis("Solved"),
    " are the attempts that solved their task, and in the last column the tasks that were solved in the end. The "
    "number of attempts or tasks is in brackets.",
)


class Attempts:
    """Chapters on the attempts of all arms."""

    def __init__(self, evaluated: Evaluated) -> None:
        self._evaluated = evaluated
        self._groups = AttemptGroups(evaluated.results)
        self._classes = ClassesByTrial(evaluated.results)
        self._actions = ActionsByTrial(evaluated.results)
        self._tasks = ActionsOfTasks(evaluated.tasks, evaluated.results)

    def add(self, facts: TaskFacts) -> None:
        """Count the attempts at one task."""
        for counter in (self._groups, self._classes, self._actions, self._tasks):
            counter.add(facts)

    def chapters(self) -> Iterator[Chapter]:
        """Yield the chapters."""
        groups = self._groups
        yield chapter("How attempts ended", groups.endings(), groups.failure_classes())
        yield chapter("Failure classes by trial", _CLASSES_NOTE, self._classes.table())
        yield chapter("Actions of each task by trial", _ACTIONS_NOTE, self._actions.table(), self._tasks.table())
        if any(counts.judged for counts in groups.counts.values()):
            yield chapter("How the agent judged its own attempts", groups.judgements())
        if causes := invalid_causes(self._evaluated):
            yield chapter("Why attempts were invalid", causes)


def invalid_causes(evaluated: Evaluated) -> Listing | None:
    """Return the causes of invalid attempts, most common first; None if there are none."""
    seeds = [seed for arm in evaluated.results for seed in arm.seeds]
    arms = dict.fromkeys(name for seed in seeds for name in (seed.first_trial, seed.stored))
    causes = evaluated.store.cause_counts(list(arms), _CAUSES)
    items = tuple(Cell(words=f"{count} x {cause}", value=count) for cause, count in causes)
    return Listing(items=items) if items else None


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
        self._arms = {f"{arm.name}, retries": arm.name for arm in results}
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

    def _cell(self, group: str) -> Cell:
        return arm_cell(self._arms[group], group) if group in self._arms else Cell(words=group)

    def endings(self) -> Table:
        """Return how often attempts ended in each way."""
        names = sorted(set[str]().union(*(counts.endings for counts in self.counts.values())))
        rows = [
            [self._cell(group), *(number(counts.endings[name]) for name in names)]
            for group, counts in self.counts.items()
        ]
        return table(["arm", *names], rows, "Number of attempts by how they ended.")

    def failure_classes(self) -> Table:
        """Return in how many failed attempts of each group the agent hallucinated or planned inefficiently, or both."""
        rows = [
            [
                self._cell(group),
                number(counts.failed),
                share(counts.hallucinated, counts.failed),
                share(counts.inefficient, counts.failed),
            ]
            for group, counts in self.counts.items()
        ]
        header = ["arm", "failed attempts", "hallucination", "inefficient planning"]
        return table(header, rows, "Failed attempts in which the agent hallucinated or planned inefficiently.")

    def judgements(self) -> Table:
        """Return the agent's own judgements against the true outcomes, of the groups whose outcomes it judged."""
        kinds = {
            (True, True): "TP: content, solved",
            (False, True): "FN: not content, solved",
            (True, False): "FP: content, failed",
            (False, False): "TN: not content, failed",
        }
        rows = [
            [
                self._cell(group),
                *(number(counts.judged[kind]) for kind in kinds),
                share(counts.judged[True, True] + counts.judged[False, False], counts.judged.total()),
            ]
            for group, counts in self.counts.items()
            if counts.judged
        ]
        return table(["arm", *kinds.values(), "right"], rows, "The agent's own judgements against the true outcomes.")


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
        self._results = results
        self._trials = len(results[0].solved_NT) if results else 0
        self._tasks = Counter[str]()
        self._counts: Mapping[str, Counter[tuple[str, int]]] = {arm.name: Counter() for arm in results}
        """Number of tasks in each class after each trial."""

    def add(self, facts: TaskFacts) -> None:
        """Count one task; it is left out of arms without a trial 0."""
        for arm, seed in each_seed(self._results, facts):
            first = seed.attempts.get(0)
            if first is not None and first.outcome is not Outcome.INVALID:
                self._tasks[arm.name] += 1
                self._add(arm, seed)

    def _add(self, arm: ArmResult, seed: SeedFacts) -> None:
        counts, last = self._counts[arm.name], None
        for trial in range(self._trials):
            made = seed.attempts.get(trial)
            # An attempt that the infrastructure spoiled says nothing about the agent.
            last = last if made is None or made.outcome is Outcome.INVALID else made
            if last is None:
                continue
            if last.outcome is Outcome.SUCCESS:
                if arm.last_counts:
                    continue
                return  # A game that is won stays won, even if the agent plays it again.
            counts["all failures", trial] += 1
            counts["hallucination", trial] += hallucinated(last)
            counts["inefficient planning", trial] += planned_inefficiently(last)

    def table(self) -> Table:
        """Return one row for each arm and class with a column for each trial."""
        trials = range(self._trials)
        rows = [
            [arm_cell(name), title, *(share(counts[title, trial], self._tasks[name]) for trial in trials)]
            for name, counts in self._counts.items()
            for title in ("hallucination", "inefficient planning", "all failures")
        ]
        header: Header = ["arm", "class", *trial_columns(trials)]
        return table(header, rows, "Share of tasks in each failure class, by trial.")


@dataclass
class _Mean:
    """Mean of some counts; a dash if there are none."""

    total: int = 0
    count: int = 0

    def add(self, value: int) -> None:
        self.total += value
        self.count += 1

    @property
    def cell(self) -> Cell:
        return number(self.total / self.count, ".1f", f" ({self.count})") if self.count else Cell(words=DASH)


class ActionsByTrial:
    """Mean number of actions of an attempt in each trial, and of all attempts at a task together (SALA, Table 2).

    Solved: the attempts that solved their task, and the tasks that were solved. All: every valid attempt and task.
    The training seeds of an arm are pooled.
    """

    def __init__(self, results: Sequence[ArmResult]) -> None:
        self._results = results
        self._trials = len(results[0].solved_NT) if results else 0
        self._means = defaultdict[tuple[str, str, int | None], _Mean](_Mean)
        """Means by arm, `solved` or `all`, and trial; None: all trials together."""

    def add(self, facts: TaskFacts) -> None:
        """Count one task."""
        for arm, seed in each_seed(self._results, facts):
            self._add(arm, seed)

    def _add(self, arm: ArmResult, seed: SeedFacts) -> None:
        attempts = {
            trial: attempt
            for trial, attempt in seed.attempts.items()
            if trial < self._trials and attempt.outcome is not Outcome.INVALID
        }
        if not attempts:
            return
        solving = [trial for trial, attempt in attempts.items() if attempt.outcome is Outcome.SUCCESS]
        for trial, attempt in attempts.items():
            for title in ("solved", "all") if trial in solving else ("all",):
                self._means[arm.name, title, trial].add(len(attempt.steps))
        won = max(attempts) in solving or (solving and not arm.last_counts)
        for title in ("solved", "all") if won else ("all",):
            self._means[arm.name, title, None].add(sum(len(attempt.steps) for attempt in attempts.values()))

    def table(self) -> Table:
        """Return two rows for each arm."""
        trials = (*range(self._trials), None)
        rows = [
            [arm_cell(arm.name), title, *(self._means[arm.name, title, trial].cell for trial in trials)]
            for arm in self._results
            for title in ("solved", "all")
        ]
        header: Header = ["arm", "tasks", *trial_columns(range(self._trials)), "all trials"]
        return table(header, rows, "Mean number of actions, by trial and at a task together.")


class ActionsOfTasks:
    """Number of actions of each attempt at the first tasks, by arm and trial (SALA, Table 2 task by task)."""

    def __init__(self, tasks: Sequence[Task], results: Sequence[ArmResult]) -> None:
        self._names = {seed.stored: seed.name for arm in results for seed in arm.seeds}
        self._trials = len(results[0].solved_NT) if results else 0
        self._shown = [task.id for task in tasks][: max(1, _ROWS // max(1, len(self._names)))]
        self._tasks = len(tasks)
        self._rows = dict[str, list[list[Cell]]]()

    def add(self, facts: TaskFacts) -> None:
        """Note the attempts at one task, if it is among those that are shown."""
        if facts.task_id in self._shown:
            self._rows[facts.task_id] = [
                [
                    Cell(words=facts.task_id, arms=(name,), task=facts.task_id),
                    arm_cell(name),
                    *(_length(facts.seeds[stored].attempts.get(trial)) for trial in range(self._trials)),
                ]
                for stored, name in self._names.items()
            ]

    def table(self) -> Table:
        """Return a row for each of these tasks and each arm, in the order in which the tasks are played."""
        rows = [row for task_id in self._shown for row in self._rows.get(task_id, [])]
        header: Header = ["task", "arm", *trial_columns(range(self._trials))]
        of_all = "" if len(self._shown) == self._tasks else f", the first {len(self._shown)} of {self._tasks} tasks"
        return table(header, rows, f"Number of actions of each attempt{of_all}.")


def _length(attempt: Trajectory | None) -> Cell:
    """Return `13, solved` or `49`; a dash if there is no valid attempt."""
    if attempt is None or attempt.outcome is Outcome.INVALID:
        return Cell(words=DASH)
    return number(len(attempt.steps), after=", solved" if attempt.outcome is Outcome.SUCCESS else "")
