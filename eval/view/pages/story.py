"""One story in columns: each attempt with the advice that it read, aligned, the first differing step marked."""

from collections.abc import Mapping

from retroformer.records import Reflection
from retroformer.store.marks import VERDICTS
from retroformer.stories.flags import FLAGS
from retroformer.stories.reading import read_story
from retroformer.stories.story import Story, Turn

from ..site import NoSuchPage, Page, Site
from ..table import StoryFilter, neighbours
from .review import mark_of


def story(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show the way to one turn, by default that of the method; the others are in the tree of candidates."""
    shown, listed = _story(site, parameters), _list_of(parameters)
    at = parameters.get("at", "")
    turn = shown.turn(at) if at else None
    if at and turn is None:
        raise NoSuchPage(f"The story has no attempt {at!r}.")
    way = shown.way_to(turn) if turn is not None else shown.chain
    before, after = neighbours(site.index, listed, _key(shown))
    return Page(
        "story.html",
        shown.task.id,
        {
            "story": shown,
            "way": way,
            "rows": max((len(turn.attempt.steps) for turn in way if turn.attempt is not None), default=0),
            "tree": [_Branch(shown, turn) for turn in shown.turns if turn.previous is None],
            "at": at,
            "before": before,
            "after": after,
            "list": {f"list_{name}": value for name, value in listed.query().items()},
            "flag_meanings": FLAGS,
            "mark": mark_of(site, shown.experiment, shown.arm, shown.task.id),
            "verdicts": VERDICTS,
        },
    )


def prompt(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show the exact prompt of a piece of advice, and what the model was asked for."""
    shown = _story(site, parameters)
    turn = shown.turn(parameters.get("at", ""))
    if turn is None or turn.reflection is None:
        raise NoSuchPage("There is no such advice in this story.")
    reflection: Reflection = turn.reflection
    return Page("prompt.html", f"Prompt of {turn.place}", {"story": shown, "turn": turn, "reflection": reflection})


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


def _key(shown: Story) -> tuple[str, str, str]:
    return shown.experiment, shown.arm, shown.task.id


def _list_of(parameters: Mapping[str, str]) -> StoryFilter:
    """Return the filter of the table from which the reader came: parameters that begin with `list_`."""
    given = {name.removeprefix("list_"): value for name, value in parameters.items() if name.startswith("list_")}
    return StoryFilter.of(given)
