"""Reads Reflexion's logs as cases: recorded runs, as if this project had made them.

The logs are in a `.jsonl[.xz]` of {"path": str, "text": str} lines, a folder, or a single file. Only HotPotQA's ReAct
logs with reflections hold what a rating needs: the failed trajectory, the reflection on it, and the trajectory of the
next trial. Everything else is skipped, and counted by reason.

1. Logs that agree wherever they overlap are one run: nothing in them counts twice. A log that contradicts a run
   starts another run, with its own arm.
2. A reflection belongs to a failure if the next trial carries it and the failed trial did not. If two are new, the
   same next trial read both: here they are one piece of advice, joined by a line break.
3. Success is exact match, as in the logs. An attempt without an answer hit Reflexion's limit of steps or of tokens;
   the log does not say which, and both are recorded as the step limit.
4. Logs identify questions only by their text: the id is that of the data, if a folder of them is configured, else the
   hash from `question_id`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from retroformer.cases.case import Case, CaseAdvice, CaseAttempt, CaseTask, Origin
from retroformer.cases.traced import Skipped
from retroformer.config.arm_names import RECORDED
from retroformer.endpoint.answers import strip_thinking
from retroformer.environments.hotpotqa import taskset
from retroformer.environments.hotpotqa.data import question_id, question_key
from retroformer.environments.hotpotqa.environment import parse
from retroformer.environments.hotpotqa.metrics import RETURNS
from retroformer.environments.hotpotqa.reflexion_log import LoggedAttempt, attempts, why_unusable
from retroformer.errors import ConfigError, MissingInput
from retroformer.files.bounded import GIB, MIB, json_rows, parse_json, read_text, size
from retroformer.method.records import Ending, Key, Outcome, Step

RATED_BY: Final = "f1_with_stop_words"
"""Return that rates imported attempts: ReAct's F1, used for these runs before.

The F1 without stop words, which rates our own rollouts, changes three of the 261: two gains that consist of a shared
"of" become ties, and one that consists of a shared "and" becomes a loss.
"""
AUTHOR = "text-davinci-003"
"""Author of the reflections; the logs do not name it."""
_RESULT_FILES = "result files of ALFWorld and WebShop, which have no trajectories"

_SUFFIXES = (".txt", ".json")
_LOG_BYTES = 64 * MIB
"""Maximum size of one log. The longest that Reflexion published has 2.3 MB."""
_MOST_BYTES = GIB
"""Maximum size of all logs, which are held in memory. Reflexion's 52 logs have 15 MB."""
_MOST_LOGS = 10_000
"""Maximum number of logs in a folder; more suggests a folder such as `/`, named by mistake."""

Run = dict[tuple[str, int], LoggedAttempt]
"""Attempts of one run by question and trial."""


def read(path: Path, score: str | None, section: Any) -> Iterator[Case | Skipped]:
    """Yield the cases of the logs, run by run and question by question.

    Args:
        path: file or folder of logs.
        score: name of the return that rates an attempt; None: `f1_with_stop_words`.
        section: config of the environment; its data hold the ids of the questions.

    Raises:
        MissingInput: there is no log at `path`, or a file is damaged or exceeds the limits.
        ConfigError: there is no such return.
    """
    rated_by = score or RATED_BY
    if rated_by not in RETURNS:
        raise ConfigError(f"--score {score}: there is no such return; choose one of {', '.join(RETURNS)}.")
    ids: Mapping[str, str] = {}
    if section.name == "hotpotqa" and section.data is not None:
        ids = taskset(section.model_copy(update={"split": "all"})).ids_by_question()
    logs = _read_logs(path)
    runs: list[Run] = []
    for log in logs:
        reason = _RESULT_FILES if log.is_result_file else why_unusable(log.text)
        if reason is not None:
            yield Skipped(reason=f"logs: {reason}")
            continue
        known = _join(runs, attempts(log.text, repr(log.path)))
        yield from [Skipped(reason="records that another log has too")] * known
    yield from [Skipped(reason=f"reflections: {_RESULT_FILES}")] * _reflections_without_trajectories(logs)
    for number, run in enumerate(runs, start=1):
        reader = _RunReader(f"{RECORDED} {number}" if number > 1 else RECORDED, ids, rated_by)
        questions = defaultdict[str, list[LoggedAttempt]](list)
        for record in sorted(run.values(), key=lambda record: record.trial):
            questions[record.question].append(record)
        for records in questions.values():
            yield from reader.cases(records)


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

    def cases(self, logged: list[LoggedAttempt]) -> Iterator[Case | Skipped]:
        """Yield the cases of one question; after a success the logs only print it again."""
        played, solved = dict[int, LoggedAttempt](), False
        for record in logged:
            if solved:
                yield Skipped(reason="records of questions that were solved before")
            elif not record.steps:
                yield Skipped(reason="records without a trajectory")
            else:
                played[record.trial - 1] = record
                solved = self._attempt(record).outcome is Outcome.SUCCESS
        shown = set[int]()
        for trial, record in played.items():
            case = self._case(trial, record)
            retry = played.get(trial + 1)
            if case.attempt.outcome is not Outcome.SUCCESS:
                written = _new_reflections(record, retry)
                if isinstance(written, Skipped):
                    yield written
                elif retry is not None:
                    shown |= {trial, trial + 1}
                    yield self._case(trial, record, CaseAdvice(text=written, model=AUTHOR), retry)
                    continue
            if trial not in shown:
                yield case

    def _case(
        self, trial: int, record: LoggedAttempt, advice: CaseAdvice | None = None, retry: LoggedAttempt | None = None
    ) -> Case:
        task_id = self._ids.get(question_key(record.question), question_id(record.question))
        key = Key(arm=self._arm, task_id=task_id, trial=trial)
        after = key.model_copy(update={"trial": trial + 1}) if retry is not None else None
        return Case(
            task=CaseTask(id=task_id, input=f"Question: {record.question}", split="recorded"),
            trial=trial,
            attempt=self._attempt(record),
            advice=advice,
            retry=self._attempt(retry) if retry is not None else None,
            origin=Origin(environment="hotpotqa", attempt=key, retry=after, rated_by=self._rated_by),
        )

    def _attempt(self, logged: LoggedAttempt) -> CaseAttempt:
        *earlier, last = map(_without_thinking, logged.steps)
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


def _new_reflections(failed: LoggedAttempt, retried: LoggedAttempt | None) -> str | Skipped:
    """Return the advice that the next trial carries and the failed one did not."""
    if retried is None:
        return Skipped(reason="failures without a next trial in the log")
    written = list((Counter(retried.reflections) - Counter(failed.reflections)).elements())
    if not written:
        return Skipped(reason="failures that were tried again without a new reflection")
    return "\n".join(written)


def _without_thinking(step: Step) -> Step:
    return step.model_copy(update={"thought": strip_thinking(step.thought), "action": strip_thinking(step.action)})


class _ReflexionLog(NamedTuple):
    """File of a recorded run: text, or the JSON results of ALFWorld and WebShop."""

    path: str
    text: str

    @property
    def is_result_file(self) -> bool:
        return self.path.endswith(".json")


def _read_logs(path: Path) -> list[_ReflexionLog]:
    """Return all logs at `path`, ordered by path.

    Raises:
        MissingInput: there is no log, or a file is damaged or exceeds the limits.
    """
    try:
        logs = sorted(_limited(path, _logs_in(path)))
    except MissingInput:
        raise
    except OSError as error:
        raise MissingInput(f"No logs can be read from {str(path)!r} ({error}): name a file or a folder.") from error
    if not logs:
        raise MissingInput(f"No log in {str(path)!r}: name a .jsonl[.xz] of logs, a .txt log or a folder of them.")
    return logs


def _limited(path: Path, logs: Iterable[_ReflexionLog]) -> Iterator[_ReflexionLog]:
    """Yield these logs. Raises MissingInput if there are too many, or too much text, to hold in memory."""
    total = 0
    for number, log in enumerate(logs, start=1):
        total += len(log.text)
        if number > _MOST_LOGS or total > _MOST_BYTES:
            limit = f"{_MOST_LOGS} logs or {size(_MOST_BYTES)}"
            raise MissingInput(f"{str(path)!r} holds more than {limit}, the limit for one import: name a part of them.")
        yield log


def _logs_in(path: Path) -> Iterator[_ReflexionLog]:
    if path.is_dir():
        for file in path.rglob("*"):
            if file.suffix in _SUFFIXES and not file.is_dir():
                yield _ReflexionLog(str(file.relative_to(path)), read_text(file, _LOG_BYTES))
    elif path.suffix in _SUFFIXES:
        yield _ReflexionLog(path.name, read_text(path, _LOG_BYTES))
    else:
        wanted = 'a line is {"path": TEXT, "text": TEXT}'
        yield from json_rows(path, _log, wanted, line_bytes=_LOG_BYTES, most_bytes=_MOST_BYTES)


def _log(row: Any) -> _ReflexionLog:
    log = _ReflexionLog(row["path"], row["text"])
    if not isinstance(log.path, str) or not isinstance(log.text, str):
        raise TypeError("path and text are texts")
    return log


def _reflections_without_trajectories(logs: Iterable[_ReflexionLog]) -> int:
    """Count the reflections in the result files: each `memory` grows by one per failure and is repeated by later files.

    A result file is a JSON list of {"name": str, "memory": [str, ...], "is_success": bool}, one entry per task.
    """
    longest: dict[tuple[Path, str], int] = {}
    for log in logs:
        for entry in _entries(log) if log.is_result_file else ():
            place = Path(log.path).parent, entry["name"]
            longest[place] = max(longest.get(place, 0), len(entry["memory"]))
    return sum(longest.values())


def _entries(log: _ReflexionLog) -> list[dict[str, Any]]:
    """Return the tasks of a result file; none if the file is another kind of JSON."""
    try:
        entries = parse_json(log.text, log.path)
    except MissingInput:
        return []
    return entries if isinstance(entries, list) and all(map(_is_entry, entries)) else []


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str) and isinstance(value.get("memory"), list)
