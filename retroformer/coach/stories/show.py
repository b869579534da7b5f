"""`retroformer show`: prints the stories of a run, as text or as JSON lines."""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from retroformer.coach.stories.listing import story_lines
from retroformer.coach.stories.reading import read_story, story_arms
from retroformer.coach.stories.runs import OpenRun
from retroformer.coach.stories.story import Story, Turn
from retroformer.coach.stories.terminal import list_text, story_text
from retroformer.config.arm_names import COLLECT
from retroformer.errors import MissingInput
from retroformer.files.text import visible


def shown(runs: Sequence[OpenRun], task_id: str | None, arm: str | None, *, as_json: bool) -> Iterator[str]:
    """Yield the lines to print: the list of stories of each arm, or the stories of one task in every arm.

    Raises:
        MissingInput: there is no such arm or task.
        StoreError: the store cannot be read.
    """
    chosen = [(run, name) for run in runs for name in story_arms(run.store) if arm in (None, name)]
    if not chosen:
        names = sorted({name for run in runs for name in story_arms(run.store)})
        if not names:
            raise MissingInput(_no_stories(runs))
        raise MissingInput(f"There is no arm {arm!r}: choose one of {', '.join(names)}.")
    if task_id is None:
        yield from _lists(chosen, as_json=as_json)
        return
    stories = [story for run, name in chosen if (story := read_story(run.store, name, task_id, run.leaks)) is not None]
    if not stories:
        raise _no_task(task_id, chosen)
    for number, story in enumerate(stories):
        if as_json:
            yield json.dumps(story_json(story), ensure_ascii=False)
        else:
            yield from ["", "", *story_text(story)] if number else story_text(story)


def _no_stories(runs: Sequence[OpenRun]) -> str:
    """Say that nothing is stored but invalid attempts, if there are any, with the cause of the last one."""
    cause = next((cause for run in runs if (cause := run.store.last_cause(COLLECT))), "")
    if not cause:
        return "No attempt is stored yet: run `retroformer collect` first."
    return f"No attempt has succeeded or failed yet, all were invalid. The cause of the last one: {visible(cause)}"


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
        if as_json:
            for line in story_lines(run.store, arm):
                yield json.dumps({"run": run.name, "arm": arm, **asdict(line)}, ensure_ascii=False)
            continue
        yield f"{'' if not number else chr(10)}{visible(run.name)}, arm {visible(arm)}"
        yield from list_text(story_lines(run.store, arm))


def _no_task(task_id: str, chosen: Sequence[tuple[OpenRun, str]]) -> MissingInput:
    ids = sorted({line.task_id for run, arm in chosen for line in story_lines(run.store, arm)})
    close = difflib.get_close_matches(task_id, ids, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "without --task, all are listed."
    return MissingInput(f"No story of the task {task_id!r}: {hint}")
