"""Reads the logs of Reflexion's HotPotQA runs as cases, as if this project had made them.

The logs are in a `.jsonl[.xz]` of {"path": str, "text": str} lines, a folder of `.txt` files, or a single file. Only
ReAct logs with reflections hold what a rating needs; the others are skipped, and counted by reason. A trial of such a
log has a header, three sections by result, and a record for each question:

    ########################################
    BEGIN TRIAL 2
    Trial summary: Correct: 42, Incorrect: 43, Halted: 14
    #######################################
    ------------- BEGIN CORRECT AGENTS -------------
                                                        an empty line before every record
    Question: TEXT[You have attempted to answer ... given question.
    Reflections:
    - TEXT                                              every reflection carried so far, oldest first
    - TEXT]
    Thought 1: TEXT
    Action 1: Search[TEXT]
    Observation 1: TEXT, maybe over several lines
    Thought 2: ...
    Correct answer: TEXT                                the gold answer

The sentence about earlier failures follows the question without a line break, sometimes twice. A question may be
missing in one trial and back in the next; one that was solved is printed again in every later trial.

1. Logs that agree wherever they overlap are one run: nothing in them counts twice. A log that contradicts a run
   starts another run, with its own arm.
2. A reflection belongs to a failure if the next trial carries it and the failed trial did not. If two are new, the
   same next trial read both: here they are one piece of advice, joined by a line break.
3. Success is exact match, as in the logs. An attempt without an answer hit Reflexion's limit of steps or of tokens;
   the log does not say which, and both are recorded as the step limit.
4. Logs identify questions only by their text: the id is that of the data, if a folder of them is configured, else the
   hash from `question_id`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from retroformer.cases.case import Case, CaseAdvice, CaseAttempt, CaseTask, Origin
from retroformer.cases.traced import Omission
from retroformer.endpoint.answers import strip_thinking
from retroformer.environments.hotpotqa import taskset
from retroformer.environments.hotpotqa.data import question_id, question_key
from retroformer.environments.hotpotqa.environment import parse
from retroformer.environments.hotpotqa.metrics import RETURNS
from retroformer.errors import ConfigError, MissingInput
from retroformer.files.bounded import GIB, MIB, json_rows, read_text
from retroformer.method.records import Ending, Key, Outcome, Step
from retroformer.run.arm_names import RECORDED

DEFAULT_RETURN: Final = "f1_with_stop_words"
"""Return that rates imported attempts: ReAct's F1, used for these runs before.

The F1 without stop words, which rates our own rollouts, changes three of the 261: two gains that consist of a shared
"of" become ties, and one that consists of a shared "and" becomes a loss.
"""
AUTHOR = "text-davinci-003"
"""Author of the reflections; the logs do not name it."""

_LOG_BYTES, _TOTAL_BYTES = 64 * MIB, GIB
"""Maximum size of one log, and of a file of logs. Reflexion's 52 logs have 15 MB, the longest 2.3 MB."""
_MAX_TRIALS = 9_999
"""Maximum trial number. Reflexion's longest run has 15; a larger number means damage."""

_TRIAL = re.compile(r"^BEGIN TRIAL (\d+)[ \t]*$", re.MULTILINE)
_QUESTION = re.compile(r"(?:(?<=\n\n)|\A)Question:")
_GOLD = re.compile(r"^Correct answer:(.*)$", re.MULTILINE)
_FIRST_STEP = re.compile(r"^(?:Thought|Action) 1:", re.MULTILINE)
_PART = re.compile(r"^(Thought|Action|Observation) \d+:", re.MULTILINE)
_BULLET = re.compile(r"^- ", re.MULTILINE)
_EARLIER_FAILURES = "You have attempted to answer following question before and failed."
_REFLECTIONS = "Reflections:\n"


class LoggedAttempt(NamedTuple):
    trial: int
    """Trial number, counted from 1, as in the log."""
    question: str
    gold: str
    reflections: tuple[str, ...]
    """Reflections that the actor carried into this trial, oldest first."""
    steps: tuple[Step, ...]
    """Steps without rewards; empty if only the question was printed."""


Run = dict[tuple[str, int], LoggedAttempt]
"""Attempts of one run by question and trial."""


def read(path: Path, score: str | None, section: Any) -> Iterator[Case | Omission]:
    """Yield the cases of the logs, run by run and question by question.

    score: name of the return that rates an attempt; None: `f1_with_stop_words`.
    section: config of the environment; its data hold the ids of the questions.

    Raises MissingInput, and ConfigError if there is no such return.
    """
    rated_by = score or DEFAULT_RETURN
    if rated_by not in RETURNS:
        raise ConfigError(f"--score {score}: there is no such return; choose one of {', '.join(RETURNS)}.")
    ids: Mapping[str, str] = {}
    if section.name == "hotpotqa" and section.data is not None:
        ids = taskset(section).ids_by_question()
    runs: list[Run] = []
    for name, text in _read_logs(path):
        reason = why_unusable(text)
        if reason is None:
            duplicates = _join(runs, attempts(text, repr(name)))
            yield from [Omission(reason="records that another log has too")] * duplicates
        else:
            yield Omission(reason=f"logs: {reason}")
    for number, run in enumerate(runs, start=1):
        reader = _RunReader(f"{RECORDED} {number}" if number > 1 else RECORDED, ids, rated_by)
        questions = defaultdict[str, list[LoggedAttempt]](list)
        for record in sorted(run.values(), key=lambda record: record.trial):
            questions[record.question].append(record)
        for records in questions.values():
            yield from reader.cases(records)


def _read_logs(path: Path) -> list[tuple[str, str]]:
    """Return name and text of all logs at `path`, ordered by name. Raises MissingInput."""
    try:
        if path.is_dir():
            files = [file for file in path.rglob("*.txt") if not file.is_dir()]
            logs = [(str(file.relative_to(path)), read_text(file, _LOG_BYTES)) for file in files]
        elif path.suffix == ".txt":
            logs = [(path.name, read_text(path, _LOG_BYTES))]
        else:
            row_form = 'a line is {"path": TEXT, "text": TEXT}'
            rows = json_rows(path, _log, row_form, line_bytes=_LOG_BYTES, most_bytes=_TOTAL_BYTES)
            logs = [row for _, row in rows]
    except OSError as error:
        raise MissingInput(f"No logs can be read from {str(path)!r} ({error}): name a file or a folder.") from error
    if not logs:
        raise MissingInput(f"No log in {str(path)!r}: name a .jsonl[.xz] of logs, a .txt log or a folder of them.")
    return sorted((name, text.replace("\r\n", "\n")) for name, text in logs)


def _log(row: Any) -> tuple[str, str]:
    name, text = row["path"], row["text"]
    if not isinstance(name, str) or not isinstance(text, str):
        raise TypeError("path and text are texts")
    return name, text


def why_unusable(text: str) -> str | None:
    """Return why no reflection of this log can be rated by the surrounding trajectories; None if one can."""
    if not _TRIAL.search(text):
        return "text without numbered trials"
    if not _FIRST_STEP.search(text):
        return "chain of thought without Search and Lookup"
    return None if _REFLECTIONS in text else "retries without reflections"


def attempts(text: str, source: str = "the log") -> list[LoggedAttempt]:
    """Return all records of a log, in order; a truncated one without a gold answer is omitted.

    `source` names the log in an error. Raises MissingInput if a trial number is out of range.
    """
    for head in _TRIAL.finditer(text):
        # Python cannot convert very long numbers.
        if len(head[1]) > len(str(_MAX_TRIALS)) or int(head[1]) < 1:
            line = text.count("\n", 0, head.start()) + 1
            raise MissingInput(
                f"Line {line} of {source} begins trial {head[1][:20]}, but trials count from 1 to {_MAX_TRIALS}: "
                "get a fresh copy."
            )
    _, *parts = _TRIAL.split(text)
    return [
        _attempt(int(number), record[: golds[-1].start()], golds[-1].group(1).strip())
        for number, trial in zip(parts[::2], parts[1::2], strict=True)
        for record in _QUESTION.split(trial)[1:]
        if (golds := list(_GOLD.finditer(record)))
    ]


def _attempt(trial: int, record: str, gold: str) -> LoggedAttempt:
    first_step = _FIRST_STEP.search(record)
    head = record[: first_step.start()] if first_step else record
    question = " ".join(head.partition(_EARLIER_FAILURES)[0].split())
    bullets = _BULLET.split(head.partition(_REFLECTIONS)[2])[1:]
    reflections = tuple(text.strip() for text in bullets)
    return LoggedAttempt(trial, question, gold, reflections, _steps(record[len(head) :]))


def _steps(text: str) -> tuple[Step, ...]:
    """Return the steps of a record; a step truncated before its action is omitted, a missing observation is empty."""
    steps: list[Step] = []
    thought = ""
    _, *parts = _PART.split(text)
    for name, content in zip(parts[::2], map(str.strip, parts[1::2]), strict=True):
        if name == "Thought":
            thought = content
        elif name == "Action":
            steps.append(Step(thought=thought, action=content, observation=""))
            thought = ""
        elif steps:
            steps[-1] = steps[-1].model_copy(update={"observation": content})
    return tuple(steps)


def _join(runs: list[Run], records: list[LoggedAttempt]) -> int:
    """Add a log to the first run that it does not contradict, or to a new one; return the number of duplicates."""
    log: Run = {(record.question, record.trial): record for record in records}
    for run in runs:
        if all(run[place] == log[place] for place in run.keys() & log.keys()):
            duplicates = len(run.keys() & log.keys())
            run.update(log)
            return duplicates
    runs.append(log)
    return 0


class _RunReader:
    """Reader of the attempts of one run."""

    def __init__(self, arm: str, ids: Mapping[str, str], rated_by: str) -> None:
        self._arm, self._ids, self._rated_by = arm, ids, rated_by

    def cases(self, logged: list[LoggedAttempt]) -> Iterator[Case | Omission]:
        """Yield the cases of one question; after a success the logs only print it again."""
        played, solved = dict[int, tuple[LoggedAttempt, CaseAttempt]](), False
        for record in logged:
            if solved:
                yield Omission(reason="records of questions that were solved before")
            elif not record.steps:
                yield Omission(reason="records without a trajectory")
            else:
                played[record.trial - 1] = record, self._attempt(record)
                solved = played[record.trial - 1][1].outcome is Outcome.SUCCESS
        shown = set[int]()
        for trial, (record, attempt) in played.items():
            if attempt.outcome is not Outcome.SUCCESS:
                following, retry = played.get(trial + 1, (None, None))
                new = Counter(following.reflections) - Counter(record.reflections) if following else Counter[str]()
                if new:
                    shown |= {trial, trial + 1}
                    advice = CaseAdvice(text="\n".join(new.elements()), model=AUTHOR)
                    yield self._case(record.question, trial, attempt, advice, retry)
                    continue
                fault = "that were tried again without a new reflection" if retry else "without a next trial in the log"
                yield Omission(reason=f"failures {fault}")
            if trial not in shown:
                yield self._case(record.question, trial, attempt)

    def _case(
        self,
        question: str,
        trial: int,
        attempt: CaseAttempt,
        advice: CaseAdvice | None = None,
        retry: CaseAttempt | None = None,
    ) -> Case:
        task_id = self._ids.get(question_key(question), question_id(question))
        first, second = (Key(arm=self._arm, task_id=task_id, trial=number) for number in (trial, trial + 1))
        return Case(
            task=CaseTask(id=task_id, input=f"Question: {question}", split="recorded"),
            trial=trial,
            attempt=attempt,
            advice=advice,
            retry=retry,
            origin=Origin(
                environment="hotpotqa", attempt=first, retry=second if retry else None, rated_by=self._rated_by
            ),
        )

    def _attempt(self, logged: LoggedAttempt) -> CaseAttempt:
        *earlier, last = (
            step.model_copy(update={"thought": strip_thinking(step.thought), "action": strip_thinking(step.action)})
            for step in logged.steps
        )
        action = parse(last.action)
        finished = action.verb == "finish"
        score = float(RETURNS[self._rated_by](action.argument, logged.gold)) if finished else 0.0
        solved = finished and bool(RETURNS["em"](action.argument, logged.gold))
        ending = Ending.SOLVED if solved else Ending.TERMINATED
        return CaseAttempt(
            score=score,
            steps=(*earlier, last.model_copy(update={"reward": score})),
            outcome=Outcome.SUCCESS if solved else Outcome.FAILURE,
            ending=ending if finished else Ending.STEP_LIMIT,
            memory=logged.reflections,
        )
