"""Recorded Reflexion runs become trajectories, reflections and returns, as if this project had made them.

Only HotPotQA's ReAct logs with reflections hold what a rating needs: the failed trajectory, the reflection on it, and
the trajectory of the next trial. All else is skipped, and counted by reason.

1. Logs that agree wherever they overlap are one run: nothing in them counts twice. A log that contradicts a run
   starts another one, with an arm of its own.
2. A reflection belongs to a failure if the next trial carries it and the failed one did not; where there are two new
   ones, both were given to the same next trial: they are one piece of advice here, joined by a line break.
3. Success is exact match, as in the logs. An attempt without an answer ran into Reflexion's limit of steps or of
   tokens; the log does not say which, and both are recorded as the step limit.
4. Logs name questions by their text only: the id is `ids[question_key(text)]`, else the hash that `question_id` makes.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from collect.log_files import read_logs, reflections_without_trajectories
from collect.reflexion_log import Attempt, attempts, why_unusable
from retroformer.environments.hotpotqa.action import parse
from retroformer.environments.hotpotqa.data import question_id, question_key
from retroformer.environments.hotpotqa.metrics import exact_match, f1, f1_without_stop_words
from retroformer.records import (
    Author,
    Ending,
    Key,
    Memory,
    Outcome,
    RatedReflection,
    Record,
    Reflection,
    Sampling,
    Task,
    Trajectory,
)

ARM = "recorded"
AUTHOR = Author(endpoint="recorded", model="text-davinci-003")
Return = Literal["f1", "f1_with_stop_words", "em"]
"""The paper's F1; the F1 of SQuAD and ReAct, which has no stop-word list; exact match."""
_RETURNS = {"f1": f1_without_stop_words, "f1_with_stop_words": f1, "em": exact_match}
_SAMPLING = Sampling(temperature=0.0, max_new_tokens=250)
_RESULT_FILES = "result files of ALFWorld and WebShop, which have no trajectories"

Run = dict[tuple[str, int], Attempt]
"""The attempts of one run by question and trial."""


class RecordedAttempt(Record):
    """One attempt, and what the actor carried into it. Trials count from 0."""

    key: Key
    trajectory: Trajectory
    memory: Memory
    returns: dict[str, float]
    """By the name of the return."""


class RecordedReflection(Record):
    """Advice on `failed`, used in `retried`, whose key it has. Its prompt is (): the logs did not keep it."""

    key: Key
    reflection: Reflection
    failed: RecordedAttempt
    retried: RecordedAttempt

    def rated(self, answer_return: Return) -> RatedReflection:
        """The advice with the returns around it."""
        before, after = self.failed.returns[answer_return], self.retried.returns[answer_return]
        return RatedReflection(key=self.key, reflection=self.reflection, return_before=before, returns_after=(after,))


class Counts(Record):
    """Ratings by sign."""

    rated: int
    positive: int
    negative: int
    zero: int


class RecordedLogs(Record):
    """Everything that the logs tell; attempts in the order of task and trial."""

    attempts: tuple[RecordedAttempt, ...]
    reflections: tuple[RecordedReflection, ...]
    skipped: dict[str, int]
    """What was read and not used, by kind and reason."""

    def counts(self, answer_return: Return) -> Counts:
        """How many reflections gained, lost or changed nothing."""
        ratings = [one.rated(answer_return).rating for one in self.reflections]
        positive, negative = sum(rating > 0 for rating in ratings), sum(rating < 0 for rating in ratings)
        zero = len(ratings) - positive - negative
        return Counts(rated=len(ratings), positive=positive, negative=negative, zero=zero)


def recorded(
    path: Path, *, ids: Mapping[str, str] | None = None, answer_return: Return = "f1", author: Author = AUTHOR
) -> RecordedLogs:
    """What the logs at `path` tell (a file or folder that `read_logs` can read).

    Args:
        path: see `log_files`.
        ids: the task id of a question, by `question_key`.
        answer_return: what rewards the last step of an attempt that gave an answer.
        author: who wrote the reflections; the logs do not say.

    Raises:
        MissingInput: there is no log at `path`.
    """
    logs = read_logs(path)
    runs: list[Run] = []
    skipped = Counter[str]()
    for log in logs:
        reason = _RESULT_FILES if log.is_result_file else why_unusable(log.text)
        if reason is None:
            skipped["records that another log has too"] += _join(runs, attempts(log.text, repr(log.path)))
        else:
            skipped[f"logs: {reason}"] += 1
    skipped[f"reflections: {_RESULT_FILES}"] = reflections_without_trajectories(logs)
    told = []
    for number, run in enumerate(runs, start=1):
        telling = _Telling(f"{ARM} {number}" if number > 1 else ARM, ids or {}, answer_return, author, skipped)
        telling.read(run)
        told.append(telling)
    return RecordedLogs(
        attempts=tuple(one for telling in told for one in telling.attempts),
        reflections=tuple(one for telling in told for one in telling.reflections),
        skipped={reason: count for reason, count in sorted(skipped.items()) if count},
    )


def _join(runs: list[Run], found: list[Attempt]) -> int:
    """Add a log to the first run that it does not contradict, or to a new one; how many records were known already."""
    log: Run = {(one.question, one.trial): one for one in found}
    for run in runs:
        if all(run[place] == log[place] for place in run.keys() & log.keys()):
            known = len(run.keys() & log.keys())
            run.update(log)
            return known
    runs.append(log)
    return 0


class _Telling:
    """Turns one run into facts of one arm."""

    def __init__(
        self, arm: str, ids: Mapping[str, str], answer_return: Return, author: Author, skipped: Counter[str]
    ) -> None:
        self._arm, self._ids, self._return, self._author = arm, ids, answer_return, author
        self._skipped = skipped
        self.attempts: list[RecordedAttempt] = []
        self.reflections: list[RecordedReflection] = []

    def read(self, run: Run) -> None:
        questions = defaultdict[str, list[Attempt]](list)
        for one in sorted(run.values(), key=lambda one: one.trial):
            questions[one.question].append(one)
        for one_question in questions.values():
            played = self._played(one_question)
            self.attempts += played.values()
            for trial, attempt in played.items():
                if attempt.trajectory.outcome is not Outcome.SUCCESS:
                    self._advice(attempt, played.get(trial + 1))

    def _played(self, logged: list[Attempt]) -> dict[int, RecordedAttempt]:
        """The attempts at one question by trial; after a success the logs only print the question again."""
        played: dict[int, RecordedAttempt] = {}
        for one in logged:
            if any(before.trajectory.outcome is Outcome.SUCCESS for before in played.values()):
                self._skipped["records of questions that were solved before"] += 1
            elif not one.steps:
                self._skipped["records without a trajectory"] += 1
            else:
                played[one.trial - 1] = self._attempt(one)
        return played

    def _attempt(self, logged: Attempt) -> RecordedAttempt:
        key = question_key(logged.question)
        task = Task(id=self._ids.get(key, question_id(logged.question)), environment="hotpotqa", split="recorded")
        *earlier, last = logged.steps
        returns, ending = _judged(last.action, logged.gold)
        trajectory = Trajectory(
            task=task,
            opening=f"Question: {logged.question}",
            steps=(*earlier, last.model_copy(update={"reward": returns[self._return]})),
            outcome=Outcome.SUCCESS if ending is Ending.SOLVED else Outcome.FAILURE,
            ending=ending,
        )
        return RecordedAttempt(
            key=Key(arm=self._arm, task_id=task.id, trial=logged.trial - 1),
            trajectory=trajectory,
            memory=Memory(reflections=logged.reflections),
            returns=returns,
        )

    def _advice(self, failed: RecordedAttempt, retried: RecordedAttempt | None) -> None:
        if retried is None:
            self._skipped["failures without a next trial in the log"] += 1
            return
        known = Counter(failed.memory.reflections)
        written = list((Counter(retried.memory.reflections) - known).elements())
        if not written:
            self._skipped["failures that were tried again without a new reflection"] += 1
            return
        advice = Reflection(text="\n".join(written), prompt=(), author=self._author, sampling=_SAMPLING)
        self.reflections.append(RecordedReflection(key=retried.key, reflection=advice, failed=failed, retried=retried))


def _judged(last_action: str, gold: str) -> tuple[dict[str, float], Ending]:
    """The returns of an attempt that ended with this action, and why it ended."""
    action = parse(last_action)
    if action.verb != "finish":
        return dict.fromkeys(_RETURNS, 0.0), Ending.STEP_LIMIT
    returns = {name: float(score(action.argument, gold)) for name, score in _RETURNS.items()}
    return returns, Ending.SOLVED if returns["em"] else Ending.TERMINATED
