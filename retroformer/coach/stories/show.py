"""`retroformer show`: the stories of a run as JSON lines, or as text with the first differing step marked."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from retroformer.coach.stories.reading import read_story, story_arms, story_lines
from retroformer.coach.stories.runs import OpenRun
from retroformer.coach.stories.story import Story, Turn
from retroformer.errors import MissingInput
from retroformer.files.text import visible
from retroformer.method.records import Ending, Outcome
from retroformer.run.arm_names import COLLECT, without_version

_WIDTH = 100


def show_lines(runs: Sequence[OpenRun], task_id: str | None, arm: str | None, *, as_json: bool) -> Iterator[str]:
    """Yield the lines to print: the list of stories of each arm, or the stories of one task in every arm.

    Raises:
        MissingInput: there is no such arm or task.
        StoreError: the store cannot be read.
    """
    chosen = [(run, name) for run in runs for name in story_arms(run.store) if arm is None or arm in _names(name)]
    if not chosen:
        names = sorted({name for run in runs for name in story_arms(run.store)})
        if not names:
            cause = next((cause for run in runs if (cause := run.store.last_cause(COLLECT))), "")
            if not cause:
                raise MissingInput("No attempt is stored yet: run `retroformer collect` first.")
            raise MissingInput(
                f"No attempt has succeeded or failed yet, all were invalid. The cause of the last one: {visible(cause)}"
            )
        raise MissingInput(f"There is no arm {arm!r}: choose one of {', '.join(names)}.")
    if task_id is None:
        yield from _lists(chosen, as_json=as_json)
        return
    stories = [story for run, name in chosen if (story := read_story(run.store, name, task_id, run.leaks)) is not None]
    if not stories:
        raise MissingInput(f"No story of the task {task_id!r}: without --task, all are listed.")
    for number, story in enumerate(stories):
        if as_json:
            yield json.dumps(story_json(story), ensure_ascii=False)
        else:
            yield from ["", "", *_story_text(story)] if number else _story_text(story)


def _names(arm: str) -> tuple[str, str, str]:
    """Return the names of an arm: its own, and that of all its versions in the store and in the report."""
    plain = without_version(arm)
    return arm, plain, plain.removeprefix("eval/")


def story_json(story: Story) -> dict[str, Any]:
    """Return a story as JSON: its turns with their advice, attempts, ratings and flags."""
    return {
        "run": story.experiment,
        "arm": story.arm,
        "task": story.task.model_dump(mode="json"),
        "turns": [_turn_json(turn) for turn in story.turns],
        "chain": [turn.place for turn in story.chain],
        "invalid": list(story.causes),
    }


def _turn_json(turn: Turn) -> dict[str, Any]:
    return {
        "place": turn.place,
        "previous": None if turn.previous is None else f"{turn.previous.trial}.{turn.previous.candidate}",
        "advice": None if turn.reflection is None else turn.reflection.model_dump(mode="json"),
        "memory": list(turn.memory),
        "attempts": [attempt.model_dump(mode="json", exclude={"task"}) for attempt in turn.attempts],
        "rating": turn.rating,
        "differs_at": turn.differs_at,
        "flags": list(turn.flags),
    }


def _lists(chosen: Sequence[tuple[OpenRun, str]], *, as_json: bool) -> Iterator[str]:
    for number, (run, arm) in enumerate(chosen):
        lines = story_lines(run.store, arm)
        if as_json:
            yield from (json.dumps({"run": run.name, "arm": arm, **asdict(line)}, ensure_ascii=False) for line in lines)
            continue
        yield f"{chr(10) if number else ''}{visible(run.name)}, arm {visible(arm)}"
        yield f"{'first':>6} {'last':>6} {'best':>6} {'worst':>6}  {'tries':>5}  {'solved':<8} task"
        for line in lines:
            numbers = (line.first, line.last, line.best_rating, line.worst_rating)
            solved = "" if line.solved_at is None else f"trial {line.solved_at}"
            cells = [_number(value, signed=place > 1).rjust(6) for place, value in enumerate(numbers)]
            yield f"{' '.join(cells)}  {line.attempts:>5}  {solved:<8} {visible(line.task_id)}"


def _story_text(story: Story) -> Iterator[str]:
    """Yield the lines of a story: every turn, trial by trial, each with its advice, its steps and its rating."""
    task = story.task
    yield visible(f"{task.key} ({task.environment}, {task.split}), arm {story.arm}")
    accepted = {turn.place for turn in story.chain}
    for turn in story.turns:
        yield ""
        yield from _turn_text(turn, accepted=turn.place in accepted)
    for cause in story.causes:
        yield ""
        yield from _wrap("   invalid: ", cause)


def _turn_text(turn: Turn, *, accepted: bool) -> Iterator[str]:
    which = f", candidate {turn.key.candidate}" if turn.previous is not None else ""
    star = ", accepted" if accepted and turn.previous is not None else ""
    yield f"== Trial {turn.key.trial}{which}{star}: {_result(turn)}"
    if turn.reflection is not None:
        flags = f" [{', '.join(turn.flags)}]" if turn.flags else ""
        yield from _wrap(f"   advice of {visible(turn.reflection.author.model)}{flags}: ", turn.advice)
        if len(turn.memory) > 1:
            yield f"   The actor read {len(turn.memory)} pieces of advice, this one last."
    if turn.attempt is None:
        return
    if turn.previous is None:
        yield from _wrap("   task: ", turn.attempt.opening)
    for number, step in enumerate(turn.attempt.steps):
        if step.thought:
            yield from _wrap("   thinks: ", step.thought)
        yield from _wrap(f"{'>' if number == turn.differs_at else ' '}{number + 1:>3} ", step.action)
        if step.observation:
            yield from _wrap("     | ", step.observation)
    if turn.previous is not None and turn.differs_at is None:
        yield "   Every step is the same as in the attempt before."


def _result(turn: Turn) -> str:
    if turn.attempt is None:
        return "not tried yet"
    if turn.attempt.outcome is Outcome.INVALID:
        return f"invalid, {visible(turn.attempt.cause)}"
    rating = "" if turn.rating is None else f", rating {_number(turn.rating, signed=True)}"
    # A failure at the end that the environment gives needs no reason; the others were cut short.
    reason = f" ({turn.attempt.ending.value})" if turn.attempt.ending is not Ending.TERMINATED else ""
    outcome = "solved" if turn.solved else f"failed{reason}"
    repeats = f" (mean of {len(turn.attempts)})" if len(turn.attempts) > 1 else ""
    return f"{outcome}, return {_number(turn.episode_return)}{repeats}{rating}"


def _wrap(start: str, text: str) -> Iterator[str]:
    """Yield the lines of a wrapped text: `start` precedes the first, an indent the others."""
    indent = " " * min(len(start), 7)
    for number, line in enumerate(visible(text).split("\n")):
        before = start if number == 0 else indent
        yield from textwrap.wrap(
            line, _WIDTH, initial_indent=before, subsequent_indent=indent, drop_whitespace=False
        ) or [before.rstrip()]


def _number(value: float | None, *, signed: bool = False) -> str:
    if value is None:
        return "-"
    text = f"{value:+.3g}" if signed else f"{value:.3g}"
    return "0" if float(text) == 0 else text
