"""One story in columns: each attempt with the advice that it read, aligned, the first differing step marked."""

from collections.abc import Mapping, Sequence
from sqlite3 import Row
from types import MappingProxyType

from retroformer.coach.stories.reading import read_story
from retroformer.coach.stories.story import FLAGS, Story, Turn
from retroformer.run.store.marks import VERDICTS

from ..site import NoSuchPage, Page, Site
from .stories import StoryFilter, neighbours

StoryKey = tuple[str, str, str]
"""Run, arm and task of a story."""
_ALIGNED_STEPS = 398
"""Rows that the stylesheet has for steps; longer attempts stand side by side without common rows."""
_Neighbours = tuple[Row | None, Row | None]
"""Rows of the stories before and after one; None at an end."""


def story(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show the attempts up to one turn, by default those of the method; all others are in the tree of candidates."""
    shown = _story(site, parameters)
    at = parameters.get("at", "")
    turn = shown.turn(at) if at else None
    if at and turn is None:
        raise NoSuchPage(f"The story has no attempt {at!r}.")
    # Parameters that begin with `list_` are the filter of the table from which the reader came.
    filter_values = {
        name.removeprefix("list_"): value for name, value in parameters.items() if name.startswith("list_")
    }
    chosen = StoryFilter.of(filter_values)
    near = neighbours(site.index, chosen, (shown.experiment, shown.arm, shown.task.key))
    listed = {f"list_{name}": value for name, value in chosen.query().items()}
    return _page(site, shown, shown.path_to(turn) if turn is not None else shown.chain, near, listed=listed)


def whole_story(site: Site, key: StoryKey, neighbours: _Neighbours) -> Page:
    """Show the attempts of the method, and below them all other candidates, between these neighbours."""
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
    content = {"story": shown, "turn": turn, "reflection": turn.reflection}
    return Page("prompt.html", f"Prompt of {turn.place}", content)


def _page(
    site: Site,
    shown: Story,
    turns: Sequence[Turn],
    neighbours: _Neighbours,
    others: Sequence[Turn] = (),
    listed: Mapping[str, str] = MappingProxyType({}),
) -> Page:
    before, after = neighbours
    content = {
        "story": shown,
        "turns": turns,
        "others": others,
        "before": before,
        "after": after,
        "list": listed,
        "aligned_steps": _ALIGNED_STEPS,
        "flag_meanings": FLAGS,
        "mark": site.source(shown.experiment).store.marks.current().get((shown.arm, shown.task.key)),
        "verdicts": VERDICTS,
    }
    return Page("story.html", shown.task.key, content)


def _story(site: Site, parameters: Mapping[str, str]) -> Story:
    run, arm, task = (parameters.get(name, "") for name in ("run", "arm", "task"))
    shown = read_story(site.source(run).store, arm, task, site.source(run).leaks)
    if shown is None:
        raise NoSuchPage(f"There is no story of the task {task!r} in the arm {arm!r}.")
    return shown
