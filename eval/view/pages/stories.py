"""Stories: the table of tasks, paged, sorted, filtered and searched."""

from collections.abc import Mapping

from retroformer.coach.stories.flags import FLAGS
from retroformer.run.store.marks import VERDICTS

from ..index import SORTS, arms_of
from ..site import Page, Site
from ..table import OUTCOMES, SIGNS, StoryFilter, StoryPage, story_page

_COLUMNS = {
    "task": "Task",
    "attempts": "Attempts",
    "first": "First return",
    "last": "Last return",
    "best": "Best rating",
    "worst": "Worst rating",
    "actions": "Actions",
    "tokens": "Tokens",
}
_CHOICES = {"outcome": OUTCOMES, "sign": tuple(SIGNS), "flag": tuple(FLAGS), "mark": VERDICTS}
assert list(_COLUMNS) == list(SORTS)


def stories(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show a page of the table."""
    chosen = StoryFilter.of(parameters)
    return table(site, chosen, story_page(site.index, chosen))


def table(site: Site, chosen: StoryFilter, page: StoryPage) -> Page:
    """Show these rows of the table."""
    arms = sorted({arm for source in site.sources for arm in arms_of(source)} | ({chosen.arm} - {""}))
    choices = {"run": tuple(source.name for source in site.sources), "arm": tuple(arms), **_CHOICES}
    listed = {f"list_{name}": value for name, value in chosen.query().items()}
    shown = {"chosen": chosen, "choices": choices, "table": page, "columns": _COLUMNS, "flags": FLAGS, "listed": listed}
    return Page("stories.html", "Stories", shown)
