"""Conversion of recorded Reflexion runs into trajectories, reflections and returns, as if this project had made them.

Only HotPotQA's ReAct logs with reflections hold what a rating needs: the failed trajectory, the reflection on it, and
the trajectory of the next trial. Everything else is skipped, and counted by reason.

1. Logs that agree wherever they overlap are one run: nothing in them counts twice. A log that contradicts a run
   starts another run, with its own arm.
2. A reflection belongs to a failure if the next trial carries it and the failed trial did not. If two are new, the
   same next trial read both: here they are one piece of advice, joined by a line break.
3. Success is exact match, as in the logs. An attempt without an answer hit Reflexion's limit of steps or of tokens;
   the log does not say which, and both are recorded as the step limit.
4. Logs identify questions only by their text: the id is `ids[question_key(text)]`, else the hash from `question_id`.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final, get_args

from retroformer.endpoint.answers import without_thinking
from retroformer.environments.hotpotqa.data import question_id, question_key
from retroformer.environments.hotpotqa.environment import parse
from retroformer.environments.hotpotqa.logs.files import read_logs, reflections_without_trajectories
from retroformer.environments.hotpotqa.logs.reflexion_log import Attempt, attempts, why_unusable
from retroformer.environments.hotpotqa.metrics import RETURNS, ReturnName
from retroformer.recorded import RecordedAttempt, RecordedLogs, RecordedReflection
from retroformer.records import (
    Author,
    Ending,
    Key,
    Memory,
    Outcome,
    Reflection,
    Sampling,
    Step,
    Task,
    Trajectory,
)

ARM = "recorded"
RATED_BY: Final = "f1_with_stop_words"
"""Return that rates imported attempts: ReAct's F1, used for these runs before.

The F1 without stop words, which rates our own rollouts, changes three of the 261: two gains that consist of a shared
"of" become ties, and one that consists of a shared "and" becomes a loss.
"""
AUTHOR = Author(endpoint="recorded", model="text-davinci-003")
_SAMPLING = Sampling(temperature=0.0, max_new_tokens=250)
_RESULT_FILES = "result files of ALFWorld and WebShop, which have no trajectories"

Run = dict[tuple[str, int], Attempt]
"""Attempts of one run by question and trial."""


def recorded(
    path: Path, *, ids: Mapping[str, str] | None = None, answer_return: ReturnName = "f1", author: Author = AUTHOR
) -> RecordedLogs:
    """Return the content of the logs at `path` (a file or folder that `read_logs` can read).

    Args:
        path: see `log_files`.
        ids: the task id of a question, by `question_key`.
        answer_return: the return that rewards the last step of an attempt that gave an answer.
        author: author of the reflections; the logs do not name it.

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
    converters = []
    for number, run in enumerate(runs, start=1):
        converter = _Converter(f"{ARM} {number}" if number > 1 else ARM, ids or {}, answer_return, author, skipped)
        converter.read(run)
        converters.append(converter)
    return RecordedLogs(
        author=author,
        rated_by=answer_return,
        return_names=get_args(ReturnName),
        attempts=tuple(attempt for converter in converters for attempt in converter.attempts),
        reflections=tuple(reflection for converter in converters for reflection in converter.reflections),
        skipped={reason: count for reason, count in sorted(skipped.items()) if count},
    )


def _join(runs: list[Run], records: list[Attempt]) -> int:
    """Add a log to the first run that it does not contradict, or to a new one; return the number of duplicates."""
    log: Run = {(record.question, record.trial): record for record in records}
    for run in runs:
        if all(run[place] == log[place] for place in run.keys() & log.keys()):
            duplicates = len(run.keys() & log.keys())
            run.update(log)
            return duplicates
    runs.append(log)
    return 0


class _Converter:
    """Converter of one run into the records of one arm."""

    def __init__(
        self, arm: str, ids: Mapping[str, str], answer_return: ReturnName, author: Author, skipped: Counter[str]
    ) -> None:
        self._arm, self._ids, self._return, self._author = arm, ids, answer_return, author
        self._skipped = skipped
        self.attempts: list[RecordedAttempt] = []
        self.reflections: list[RecordedReflection] = []

    def read(self, run: Run) -> None:
        questions = defaultdict[str, list[Attempt]](list)
        for record in sorted(run.values(), key=lambda record: record.trial):
            questions[record.question].append(record)
        for records in questions.values():
            played = self._played(records)
            self.attempts += played.values()
            for trial, attempt in played.items():
                if attempt.trajectory.outcome is not Outcome.SUCCESS:
                    self._advice(attempt, played.get(trial + 1))

    def _played(self, logged: list[Attempt]) -> dict[int, RecordedAttempt]:
        """Return the attempts at one question by trial; after a success the logs only print the question again."""
        played: dict[int, RecordedAttempt] = {}
        for record in logged:
            if any(before.trajectory.outcome is Outcome.SUCCESS for before in played.values()):
                self._skipped["records of questions that were solved before"] += 1
            elif not record.steps:
                self._skipped["records without a trajectory"] += 1
            else:
                played[record.trial - 1] = self._attempt(record)
        return played

    def _attempt(self, logged: Attempt) -> RecordedAttempt:
        key = question_key(logged.question)
        task = Task(id=self._ids.get(key, question_id(logged.question)), environment="hotpotqa", split="recorded")
        *earlier, last = map(_without_thinking, logged.steps)
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
        carried = Counter(failed.memory.reflections)
        written = list((Counter(retried.memory.reflections) - carried).elements())
        if not written:
            self._skipped["failures that were tried again without a new reflection"] += 1
            return
        advice = Reflection(
            text=without_thinking("\n".join(written)), prompt=(), author=self._author, sampling=_SAMPLING
        )
        self.reflections.append(RecordedReflection(key=retried.key, reflection=advice, failed=failed, retried=retried))


def _without_thinking(step: Step) -> Step:
    return step.model_copy(update={"thought": without_thinking(step.thought), "action": without_thinking(step.action)})


def _judged(last_action: str, gold: str) -> tuple[dict[str, float], Ending]:
    """Return the returns of an attempt that ended with this action, and the ending."""
    action = parse(last_action)
    if action.verb != "finish":
        return dict.fromkeys(RETURNS, 0.0), Ending.STEP_LIMIT
    returns = {name: float(score(action.argument, gold)) for name, score in RETURNS.items()}
    return returns, Ending.SOLVED if returns["em"] else Ending.TERMINATED
