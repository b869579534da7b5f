"""Stories as text for a terminal: the list of an arm, then one story with the first differing step marked."""

import textwrap
from collections.abc import Iterable, Iterator

from retroformer.coach.stories.listing import StoryLine
from retroformer.coach.stories.story import Story, Turn
from retroformer.files.text import visible
from retroformer.method.records import Outcome, Step, Trajectory

_WIDTH = 100
_MARK = ">"
"""Before the first step that differs from the attempt before."""


def list_text(lines: Iterable[StoryLine]) -> Iterator[str]:
    """Yield the lines of a list of stories, the header first."""
    yield f"{'first':>6} {'last':>6} {'best':>6} {'worst':>6}  {'tries':>5}  {'solved':<8} task"
    for line in lines:
        numbers = (line.first, line.last, line.best_rating, line.worst_rating)
        solved = "" if line.solved_at is None else f"trial {line.solved_at}"
        cells = [_number(value, signed=place > 1).rjust(6) for place, value in enumerate(numbers)]
        yield f"{' '.join(cells)}  {line.attempts:>5}  {solved:<8} {visible(line.task_id)}"


def story_text(story: Story) -> Iterator[str]:
    """Yield the lines of a story: every turn, trial by trial, each with its advice, its steps and its rating."""
    task = story.task
    yield visible(f"{task.id} ({task.environment}, {task.split}), arm {story.arm}")
    accepted = {turn.place for turn in story.chain}
    for turn in story.turns:
        yield ""
        yield from _turn_text(turn, accepted=turn.place in accepted)
    for cause in story.causes:
        yield ""
        yield from _block("invalid", cause)


def _turn_text(turn: Turn, *, accepted: bool) -> Iterator[str]:
    which = f", candidate {turn.key.candidate}" if turn.previous is not None else ""
    star = ", accepted" if accepted and turn.previous is not None else ""
    yield f"== Trial {turn.key.trial}{which}{star}: {_result(turn)}"
    if turn.reflection is not None:
        flags = f" [{', '.join(turn.flags)}]" if turn.flags else ""
        yield from _block(f"advice of {visible(turn.reflection.author.model)}{flags}", turn.advice)
        if len(turn.memory) > 1:
            yield f"   The actor read {len(turn.memory)} pieces of advice, this one last."
    if turn.attempt is not None:
        yield from _attempt_text(turn.attempt, turn.differs_at, opening=turn.previous is None)
    if turn.previous is not None and turn.attempt is not None and turn.differs_at is None:
        yield "   Every step is the same as in the attempt before."


def _attempt_text(attempt: Trajectory, differs_at: int | None, *, opening: bool) -> Iterator[str]:
    if opening:
        yield from _block("task", attempt.opening)
    for number, step in enumerate(attempt.steps):
        yield from _step_text(number, step, mark=_MARK if number == differs_at else " ")


def _step_text(number: int, step: Step, mark: str) -> Iterator[str]:
    if step.thought:
        yield from _block("thinks", step.thought)
    yield from _wrapped(f"{mark}{number + 1:>3} ", f"{step.action}")
    if step.observation:
        yield from _wrapped("     | ", step.observation)


def _result(turn: Turn) -> str:
    if turn.attempt is None:
        return "not tried yet"
    if turn.attempt.outcome is Outcome.INVALID:
        return f"invalid, {visible(turn.attempt.cause)}"
    rating = "" if turn.rating is None else f", rating {_number(turn.rating, signed=True)}"
    outcome = "solved" if turn.solved else f"failed ({turn.attempt.ending.value})"
    repeats = f" (mean of {len(turn.attempts)})" if len(turn.attempts) > 1 else ""
    return f"{outcome}, return {_number(turn.episode_return)}{repeats}{rating}"


def _block(title: str, text: str) -> Iterator[str]:
    yield from _wrapped(f"   {title}: ", text)


def _wrapped(start: str, text: str) -> Iterator[str]:
    """Yield the lines of a wrapped text: `start` precedes the first, an indent the others."""
    indent = " " * min(len(start), 7)
    for number, line in enumerate(visible(text).split("\n") or [""]):
        before = start if number == 0 else indent
        yield from textwrap.wrap(
            line, _WIDTH, initial_indent=before, subsequent_indent=indent, drop_whitespace=False
        ) or [before.rstrip()]


def _number(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    text = f"{value:+.3g}" if signed else f"{value:.3g}"
    return "0" if float(text) == 0 else text
