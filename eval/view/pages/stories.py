"""Stories: the table of tasks, paged, sorted, filtered and searched."""

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from retroformer.coach.stories.reading import story_arms
from retroformer.coach.stories.story import FLAGS
from retroformer.run.store.marks import VERDICTS

from ..index import SORTS, Index
from ..site import Page, Site

_ROWS = 50
"""Stories on a page of the table."""
_OUTCOMES = ("solved at once", "solved later", "failed", "invalid")
_SIGNS = {"positive": "best > 0", "zero": "best = 0", "negative": "worst < 0", "none": "best IS NULL"}
"""Filters by the ratings in a story: some advice gained, none gained, some harmed, none was tried."""
_WORD = re.compile(r"[^\W_\u19b0-\u19c0\u19c8\u19c9\u1cf2\u1cf3]+")
"""A word as the index divides text; SQLite takes these letters of New Tai Lue and Vedic for marks."""
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
_CHOICES = {"outcome": _OUTCOMES, "sign": tuple(_SIGNS), "flag": tuple(FLAGS), "mark": VERDICTS}
assert list(_COLUMNS) == list(SORTS)


@dataclass(frozen=True)
class StoryFilter:
    """Choice and order of stories, as in a URL. Empty values choose all."""

    run: str = ""
    arm: str = ""
    """An arm; with a slash at its end, all arms below it, such as the training seeds `eval/trained/`."""
    outcome: str = ""
    sign: str = ""
    flag: str = ""
    mark: str = ""
    q: str = ""
    """Words that the advice, the steps or the task id must all hold."""
    sort: str = "task"
    page: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> "StoryFilter":
        """Return the filter of a query string; an unknown order and an invalid page are ignored."""
        values = {field.name: parameters.get(field.name, "") for field in fields(cls) if field.type is not int}
        number = parameters.get("page", "")
        page = int(number) if re.fullmatch("[0-9]{1,7}", number) else 1
        chosen = cls(**{name: value for name, value in values.items() if value}, page=max(1, page))
        return chosen if chosen.sort in SORTS else replace(chosen, sort="task")

    def query(self, **changes: Any) -> dict[str, str]:
        """Return the parts of the query string that are not the default, with these changes."""
        plain = StoryFilter()
        chosen = replace(self, **changes)
        return {name: str(value) for name, value in asdict(chosen).items() if value != getattr(plain, name)}

    def where(self) -> tuple[str, dict[str, str]]:
        """Return the condition in SQL and its parameters, whose names begin with `of_`."""
        names = [name for name in ("run", "arm", "outcome", "mark") if getattr(self, name)]
        parts = [f"{name} = :of_{name}" for name in names]
        values = {f"of_{name}": getattr(self, name) for name in names}
        if self.arm.endswith("/"):
            # All names that begin so: the next character after a slash is 0.
            parts[parts.index("arm = :of_arm")] = "arm >= :of_arm AND arm < :of_next_arm"
            values["of_next_arm"] = f"{self.arm[:-1]}0"
        if self.sign in _SIGNS:
            parts.append(_SIGNS[self.sign])
        if self.flag:
            parts.append("instr(flags, :of_flag)")
            values["of_flag"] = f"[{self.flag}]"
        if words := _WORD.findall(self.q):
            parts.append("id IN (SELECT rowid FROM words WHERE words MATCH :of_words)")
            values["of_words"] = " ".join(f'"{word}"' for word in words)
        return " AND ".join(parts) or "1", values


@dataclass(frozen=True)
class StoryPage:
    """One page of the table."""

    rows: list[sqlite3.Row]
    total: int
    """Number of stories on all pages."""
    page: int
    pages: int


def stories(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show a page of the table."""
    chosen = StoryFilter.of(parameters)
    return table(site, chosen, story_page(site.index, chosen))


def table(site: Site, chosen: StoryFilter, page: StoryPage) -> Page:
    """Show these rows of the table."""
    arms = sorted({arm for source in site.sources for arm in story_arms(source.store)} | ({chosen.arm} - {""}))
    choices = {"run": tuple(source.name for source in site.sources), "arm": tuple(arms), **_CHOICES}
    listed = {f"list_{name}": value for name, value in chosen.query().items()}
    shown = {"chosen": chosen, "choices": choices, "table": page, "columns": _COLUMNS, "flags": FLAGS, "listed": listed}
    return Page("stories.html", "Stories", shown)


def story_page(index: Index, chosen: StoryFilter) -> StoryPage:
    """Return a page of stories; the last one if there are fewer pages."""
    condition, values = chosen.where()
    with index.connect() as connection:
        (total,) = connection.execute(f"SELECT count(*) FROM story WHERE {condition}", values).fetchone()
        pages = max(1, -(-total // _ROWS))
        page = min(chosen.page, pages)
        query = f"SELECT * FROM story WHERE {condition} ORDER BY {SORTS[chosen.sort]} LIMIT {_ROWS} OFFSET :skipped"
        rows = connection.execute(query, {**values, "skipped": (page - 1) * _ROWS}).fetchall()
    return StoryPage(rows, total, page, pages)


def neighbours(
    index: Index, chosen: StoryFilter, key: tuple[str, str, str]
) -> tuple[sqlite3.Row | None, sqlite3.Row | None]:
    """Return the stories before and after the one of this run, arm and task in the list; None at an end."""
    condition, values = chosen.where()
    before = None
    with index.connect() as connection:
        query = f"SELECT run, arm, task FROM story WHERE {condition} ORDER BY {SORTS[chosen.sort]}"
        listed = connection.execute(query, values)
        for row in listed:
            if tuple(row) == key:
                return before, listed.fetchone()
            before = row
    return None, None
