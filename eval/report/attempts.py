"""Chapters on attempts: how they ended and failed, what they took, how the agent judged them, and why some are invalid.

Failure classes are those of Fig. 3b of Reflexion (NeurIPS version, section 4.1):

hallucination: the attempt has two or more consecutive identical actions to which the environment responded with the
same observation, or it went in a cycle, the sign of hallucination by which the stop heuristic of the same section ends
an attempt (`loop.repetitions`): more than Omega = 3 times the same action with the same observation.

inefficient planning: the attempt has at least epsilon = 30 actions. The paper says more than 30, but its stop
heuristic, like `loop.actions: 30`, ends an attempt at its 30th action, so no attempt would be in that class.

Only failed attempts are in a class, and an attempt may be in both.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise

from retroformer.environments.extras import TaskFacts
from retroformer.files import document as doc
from retroformer.method.records import Ending, Outcome, Trajectory

from ..measure.results import ArmResult, first_trials
from .report_input import ReportInput, each_seed

EPSILON = 30
"""Fewest actions of an attempt with inefficient planning."""
OMEGA = 3
"""Most times that an attempt without a cycle has the same action with the same observation."""
_CAUSES_SHOWN = 10
"""Most causes of invalid attempts that are shown."""
_MOST_ROWS = 30
"""Most rows of the table of single tasks: SALA's 14 tasks with two arms."""
_CLASSES_NOTE = (
    "Share of tasks whose last attempt made by each trial failed and is in the class. ",
    doc.emphasis("Hallucination"),
    ": two or more consecutive identical actions with the same observation, or a cycle, which is the same action with "
    f"the same observation more than {OMEGA} times. ",
    doc.emphasis("Inefficient planning"),
    f": at least {EPSILON} actions. An attempt may be in both or in none.",
)


class AttemptGroups:
    """Chapters on the endings, judgements and invalid causes of each trial 0, which arms share, and of all retries."""

    def __init__(self, evaluation: ReportInput) -> None:
        self._evaluation, results = evaluation, evaluation.results
        self._firsts = dict[str, str]()
        """Group of each trial 0, by the name in the store of the first arm that has it."""
        for trial, arms in first_trials(results).items():
            of_arms = ", ".join(arm.name for arm in arms)
            seed = next(seed for seed in arms[0].seeds if seed.first_trial == trial)
            self._firsts[seed.stored] = "trial 0, shared" if arms[0].shares_first else f"trial 0 of {of_arms}"
        self._retries = {seed.stored: f"{arm.name}, retries" for arm in results for seed in arm.seeds}
        names = dict.fromkeys((*self._firsts.values(), *self._retries.values()))
        self._endings = {name: Counter[str]() for name in names}
        self.judged = {name: Counter[tuple[bool, bool]]() for name in names}
        """Number of attempts that the agent judged itself, by (agent judged success, task solved)."""
        retries = {f"{arm.name}, retries": doc.arm_cell(arm.name, f"{arm.name}, retries") for arm in results}
        self._cells = {name: retries.get(name, doc.Cell(words=name)) for name in names}

    def add(self, facts: TaskFacts) -> None:
        for stored, seed in facts.seeds.items():
            for trial, attempt in seed.attempts.items():
                group = self._retries[stored] if trial else self._firsts.get(stored)
                if group is None:
                    continue
                self._endings[group][attempt.ending.value] += 1
                if attempt.judged is not None:
                    self.judged[group][attempt.judged, attempt.outcome is Outcome.SUCCESS] += 1

    def chapters(self) -> Iterator[doc.Chapter]:
        yield doc.chapter("How attempts ended", self.endings())
        if any(self.judged.values()):
            yield doc.chapter("How the agent judged its own attempts", self.judgements())
        stored = [*first_trials(self._evaluation.results), *self._retries]
        if causes := self._evaluation.store.cause_counts(stored, _CAUSES_SHOWN):
            items = tuple(doc.Cell(words=f"{count} x {cause}", value=count) for cause, count in causes)
            yield doc.chapter("Why attempts were invalid", doc.Listing(items=items))

    def endings(self) -> doc.Table:
        names = sorted(set[str]().union(*self._endings.values()))
        rows: list[doc.Row] = [
            {"arm": self._cells[group], **{name: counts[name] for name in names}}
            for group, counts in self._endings.items()
        ]
        return doc.table(rows, "Number of attempts by how they ended.")

    def judgements(self) -> doc.Table:
        """Return the agent's own judgements against the true outcomes, of the groups whose outcomes it judged."""
        kinds = {
            (True, True): "TP: content, solved",
            (False, True): "FN: not content, solved",
            (True, False): "FP: content, failed",
            (False, False): "TN: not content, failed",
        }
        rows: list[doc.Row] = [
            {
                "arm": self._cells[group],
                **{title: counts[kind] for kind, title in kinds.items()},
                "right": doc.share(counts[True, True] + counts[False, False], counts.total()),
            }
            for group, counts in self.judged.items()
            if counts
        ]
        return doc.table(rows, "The agent's own judgements against the true outcomes.")


def is_hallucination(attempt: Trajectory) -> bool:
    """Return True if the agent repeated an action at once and got the same observation, or went in a cycle."""
    seen = [(step.action, step.observation) for step in attempt.steps]
    at_once = any(step == following for step, following in pairwise(seen))
    return at_once or attempt.ending is Ending.REPETITION or max(Counter(seen).values(), default=0) > OMEGA


def is_inefficient(attempt: Trajectory) -> bool:
    return len(attempt.steps) >= EPSILON


class FailureClasses:
    """Chapter on the failure classes of each arm by trial, with its training seeds pooled.

    The class of a task by a trial is that of its last attempt made by then: a solved task stays out of all classes, and
    a task that the agent stopped trying stays in those of its last attempt.
    """

    def __init__(self, evaluation: ReportInput) -> None:
        self._results = evaluation.results
        self._trials = range(evaluation.experiment.loop.trials)
        self._tasks = Counter[str]()
        self._failed = Counter[tuple[str, str, int]]()
        """Number of tasks by arm, class and trial."""

    def add(self, facts: TaskFacts) -> None:
        """Count one task, except in arms without a trial 0."""
        for arm, seed in each_seed(self._results, facts):
            # An invalid attempt says nothing about the agent.
            valid = {
                trial: attempt for trial, attempt in seed.attempts.items() if attempt.outcome is not Outcome.INVALID
            }
            if 0 in valid:
                self._count(arm, valid)

    def _count(self, arm: ArmResult, attempts: Mapping[int, Trajectory]) -> None:
        self._tasks[arm.name] += 1
        last = attempts[0]
        for trial in self._trials:
            last = attempts.get(trial, last)
            if last.outcome is Outcome.SUCCESS:
                if arm.last_counts:
                    continue
                break  # A game that is won stays won, even if the agent plays it again.
            self._failed[arm.name, "all failures", trial] += 1
            self._failed[arm.name, "hallucination", trial] += is_hallucination(last)
            self._failed[arm.name, "inefficient planning", trial] += is_inefficient(last)

    def chapters(self) -> Iterator[doc.Chapter]:
        """Yield the chapter, unless no attempt is in a class, as in environments that know neither."""
        if not any(count for (_, title, _), count in self._failed.items() if title != "all failures"):
            return
        rows: list[doc.Row] = [
            {"arm": doc.arm_cell(arm.name), "class": title}
            | {
                doc.trial_column(n): doc.share(self._failed[arm.name, title, n], self._tasks[arm.name])
                for n in self._trials
            }
            for arm in self._results
            for title in ("hallucination", "inefficient planning", "all failures")
        ]
        table = doc.table(rows, "Share of tasks in each failure class, by trial.")
        yield doc.chapter("Failure classes by trial", _CLASSES_NOTE, table)


class ActionsOfTasks:
    """Chapter on the number of actions of each attempt at the first tasks, by arm and trial (SALA, Table 2)."""

    def __init__(self, evaluation: ReportInput) -> None:
        self._names = {seed.stored: seed.name for arm in evaluation.results for seed in arm.seeds}
        self._trials = evaluation.experiment.loop.trials
        self._shown = [task.id for task in evaluation.tasks][: max(1, _MOST_ROWS // len(self._names))]
        self._tasks = len(evaluation.tasks)
        self._rows = dict[str, list[doc.Row]]()
        self._longest = 0

    def add(self, facts: TaskFacts) -> None:
        """Note the attempts at one task, if it is among those that are shown."""
        if facts.task_id in self._shown:
            attempts = [attempt for seed in facts.seeds.values() for attempt in seed.attempts.values()]
            self._longest = max([self._longest, *(len(attempt.steps) for attempt in attempts)])
            self._rows[facts.task_id] = [
                {
                    "task": doc.Cell(words=facts.task_id, arms=(name,), task=facts.task_id),
                    "arm": doc.arm_cell(name),
                    **{doc.trial_column(n): _length(facts.seeds[stored].attempts.get(n)) for n in range(self._trials)},
                }
                for stored, name in self._names.items()
            ]

    def chapters(self) -> Iterator[doc.Chapter]:
        """Yield a row for each of these tasks and each arm, in the order in which the tasks are played.

        Nothing if no attempt has two actions: an agent that plays by itself may have one, its answer.
        """
        if self._longest < 2:
            return
        rows = [row for task_id in self._shown for row in self._rows.get(task_id, [])]
        of_all = "" if len(self._shown) == self._tasks else f", the first {len(self._shown)} of {self._tasks} tasks"
        table = doc.table(rows, f"Number of actions of each attempt{of_all}.")
        yield doc.chapter("Actions of each task by trial", table)


def _length(attempt: Trajectory | None) -> doc.Cell:
    """Return `13, solved` or `49`; a dash if there is no valid attempt."""
    if attempt is None or attempt.outcome is Outcome.INVALID:
        return doc.Cell(words=doc.DASH)
    return doc.number(len(attempt.steps), after=", solved" if attempt.outcome is Outcome.SUCCESS else "")
