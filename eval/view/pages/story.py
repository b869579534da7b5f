"""One story in columns: each attempt with the advice that it read, aligned, the first differing step marked."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from sqlite3 import Row

from retroformer.coach.stories.flags import FLAGS
from retroformer.coach.stories.reading import read_story
from retroformer.coach.stories.story import Story, Turn
from retroformer.method.records import Reflection
from retroformer.run.store.marks import VERDICTS

from ..site import NoSuchPage, Page, Site
from ..table import StoryFilter, neighbours
from .review import mark_of

StoryKey = tuple[str, str, str]
"""Run, arm and task of a story."""
_ALIGNED_STEPS = 398
"""Rows that the stylesheet has for steps; longer attempts stand side by side without common rows."""
_Neighbours = tuple[Row | None, Row | None]
"""Rows of the stories before and after one; None at an end."""


def story(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show the way to one turn, by default that of the method; the others are in the tree of candidates."""
    shown, listed = _story(site, parameters), _list_of(parameters)
    at = parameters.get("at", "")
    turn = shown.turn(at) if at else None
    if at and turn is None:
        raise NoSuchPage(f"The story has no attempt {at!r}.")
    way = shown.way_to(turn) if turn is not None else shown.chain
    page = _page(site, shown, way, neighbours(site.index, listed, _key(shown)))
    return replace(
        page, shown={**page.shown, "list": {f"list_{name}": value for name, value in listed.query().items()}}
    )


def whole_story(site: Site, key: StoryKey, neighbours: _Neighbours) -> Page:
    """Show the way of the method, and below it all other candidates, between these neighbours."""
    run, arm, task = key
    shown = _story(site, {"run": run, "arm": arm, "task": task})
    others = [turn for turn in shown.turns if turn.place not in {accepted.place for accepted in shown.chain}]
    return _page(site, shown, shown.chain, neighbours, others)


def prompt(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show the exact prompt of a piece of advice, and what the model was asked for."""
    shown = _story(site, parameters)
    turn = shown.turn(parameters.get("at", ""))
    if turn is None or turn.reflection is None:
        raise NoSuchPage("There is no such advice in this story.")
    reflection: Reflection = turn.reflection
    return Page("prompt.html", f"Prompt of {turn.place}", {"story": shown, "turn": turn, "reflection": reflection})


def _page(site: Site, shown: Story, way: Sequence[Turn], neighbours: _Neighbours, others: Sequence[Turn] = ()) -> Page:
    before, after = neighbours
    content = {
        "story": shown,
        "way": way,
        "others": others,
        "tree": [_Branch(shown, turn) for turn in shown.turns if turn.previous is None],
        "before": before,
        "after": after,
        "list": {},
        "aligned_steps": _ALIGNED_STEPS,
        "flag_meanings": FLAGS,
        "mark": mark_of(site, shown.experiment, shown.arm, shown.task.id),
        "verdicts": VERDICTS,
    }
    return Page("story.html", shown.task.id, content)


class _Branch:
    """A turn and the retries after it, for the tree of candidates."""

    def __init__(self, story: Story, turn: Turn) -> None:
        self.turn = turn
        self.retries = [_Branch(story, retry) for retry in story.retries(turn)]


def _story(site: Site, parameters: Mapping[str, str]) -> Story:
    run, arm, task = (parameters.get(name, "") for name in ("run", "arm", "task"))
    shown = read_story(site.source(run).store, arm, task, site.source(run).leaks)
    if shown is None:
        raise NoSuchPage(f"There is no story of the task {task!r} in the arm {arm!r}.")
    return shown


def _key(shown: Story) -> StoryKey:
    return shown.experiment, shown.arm, shown.task.id


def _list_of(parameters: Mapping[str, str]) -> StoryFilter:
    """Return the filter of the table from which the reader came: parameters that begin with `list_`."""
    given = {name.removeprefix("list_"): value for name, value in parameters.items() if name.startswith("list_")}
    return StoryFilter.of(given)
