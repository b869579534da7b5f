"""Parser of one text log of Reflexion's HotPotQA ReAct runs into attempts.

The format, in UTF-8. A trial has a header, three sections by result, and a record for each question:

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

Irregularities to tolerate: summaries that do not add up to 100; the sentence about earlier failures follows the
question without a line break, sometimes twice; a question is missing in one trial and back in the next; a question
solved before is printed again in every later trial, with or without its steps.
"""

import re
from typing import NamedTuple

from retroformer.errors import MissingInput
from retroformer.method.records import Step

_TRIAL = re.compile(r"^BEGIN TRIAL (\d+)[ \t]*$", re.MULTILINE)
_QUESTION = re.compile(r"(?:(?<=\n\n)|\A)Question:")
_GOLD = re.compile(r"^Correct answer:(.*)$", re.MULTILINE)
_FIRST_STEP = re.compile(r"^(?:Thought|Action) 1:", re.MULTILINE)
_PART = re.compile(r"^(Thought|Action|Observation) \d+:", re.MULTILINE)
_BULLET = re.compile(r"^- ", re.MULTILINE)
_EARLIER_FAILURES = "You have attempted to answer following question before and failed."
_REFLECTIONS = "Reflections:\n"
_MOST_TRIALS = 9_999
"""Maximum trial number. Reflexion's longest run has 15; a larger number means damage."""


class LoggedAttempt(NamedTuple):
    """Record of a log."""

    trial: int
    """Trial number, counted from 1, as in the log."""
    question: str
    gold: str
    reflections: tuple[str, ...]
    """Reflections that the actor carried into this trial, oldest first."""
    steps: tuple[Step, ...]
    """Steps without rewards; empty if only the question was printed."""


def why_unusable(text: str) -> str | None:
    """Return why no reflection of this log can be rated by the surrounding trajectories; None if one can."""
    if not _TRIAL.search(text):
        return "text without numbered trials"
    if not _FIRST_STEP.search(text):
        return "chain of thought without Search and Lookup"
    return None if _REFLECTIONS in text else "retries without reflections"


def attempts(text: str, source: str = "the log") -> list[LoggedAttempt]:
    """Return all records of a log, in order; a truncated one without a gold answer is omitted.

    Args:
        text: the log.
        source: name of the log in an error.

    Raises:
        MissingInput: a trial number is out of range.
    """
    for head in _TRIAL.finditer(text):
        # Python cannot convert very long numbers.
        if len(head[1]) > len(str(_MOST_TRIALS)) or int(head[1]) < 1:
            line = text.count("\n", 0, head.start()) + 1
            raise MissingInput(
                f"Line {line} of {source} begins trial {head[1][:20]}, but trials count from 1 to {_MOST_TRIALS}: "
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
