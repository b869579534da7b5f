"""The table of stories: which are shown, in what order, and their neighbours."""

import re
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from .index import Index

PAGE = 50
"""Stories on a page of the table."""
OUTCOMES = ("solved at once", "solved later", "failed", "invalid")
SIGNS = {"positive": "best > 0", "zero": "best = 0", "negative": "worst < 0", "none": "best IS NULL"}
"""Filters by the ratings in a story: some advice gained, none gained, some harmed, none was tried."""
SORTS = {
    "task": "task",
    "attempts": "attempts DESC",
    "first": "first DESC",
    "last": "last DESC",
    "best": "best DESC",
    "worst": "worst",
    "actions": "actions DESC",
    "tokens": "tokens DESC",
}
"""Orders by the name of the column that a reader clicks; each ends with the task id, so that pages do not overlap."""


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
        """Return the filter of a query string; what it does not know, or cannot use, is left out."""
        given = {field.name: parameters.get(field.name, "") for field in fields(cls) if field.type is not int}
        number = parameters.get("page", "")
        page = int(number) if re.fullmatch("[0-9]{1,7}", number) else 1
        chosen = cls(**{name: value for name, value in given.items() if value}, page=max(1, page))
        return chosen if chosen.sort in SORTS else replace(chosen, sort="task")

    def query(self, **changes: Any) -> dict[str, str]:
        """Return the parts of the query string that are not the default, with these changes."""
        plain = StoryFilter()
        chosen = replace(self, **changes)
        return {name: str(value) for name, value in asdict(chosen).items() if value != getattr(plain, name)}

    def where(self) -> tuple[str, list[Any]]:
        """Return the condition in SQL and its parameters."""
        parts, values = ["1"], list[Any]()
        for name in ("run", "arm", "outcome", "mark"):
            if value := getattr(self, name):
                below = name == "arm" and value.endswith("/")
                parts.append("substr(arm, 1, ?) = ?" if below else f"{name} = ?")
                values += [len(value), value] if below else [value]
        if self.sign in SIGNS:
            parts.append(SIGNS[self.sign])
        if self.flag:
            parts.append("instr(flags, ?)")
            values.append(f"[{self.flag}]")
        if words := re.findall(r"\w+", self.q):
            parts.append("id IN (SELECT rowid FROM words WHERE words MATCH ?)")
            values.append(" ".join(f'"{word}"' for word in words))
        return " AND ".join(parts), values

    @property
    def order(self) -> str:
        return f"{SORTS[self.sort]}, task, run, arm"


@dataclass(frozen=True)
class StoryPage:
    """One page of the table."""

    rows: list[sqlite3.Row]
    total: int
    """Number of stories on all pages."""
    page: int
    pages: int


def story_page(index: Index, chosen: StoryFilter) -> StoryPage:
    """Return a page of stories; the last one if there are fewer pages."""
    condition, values = chosen.where()
    with index.connect() as connection:
        (total,) = connection.execute(f"SELECT count(*) FROM story WHERE {condition}", values).fetchone()
        pages = max(1, -(-total // PAGE))
        page = min(chosen.page, pages)
        query = f"SELECT * FROM story WHERE {condition} ORDER BY {chosen.order} LIMIT ? OFFSET ?"
        rows = connection.execute(query, [*values, PAGE, (page - 1) * PAGE]).fetchall()
    return StoryPage(rows, total, page, pages)


def neighbours(index: Index, chosen: StoryFilter, key: tuple[str, str, str]) -> tuple[sqlite3.Row | None, ...]:
    """Return the stories before and after the one of this run, arm and task, in the chosen order; None at an end."""
    condition, values = chosen.where()
    over = f"OVER (ORDER BY {chosen.order})"
    query = (
        f"SELECT before, after FROM (SELECT run, arm, task, lag(id) {over} AS before, lead(id) {over} AS after "
        f"FROM story WHERE {condition}) WHERE run = ? AND arm = ? AND task = ?"
    )
    with index.connect() as connection:
        beside = connection.execute(query, [*values, *key]).fetchone() or (None, None)
        return tuple(
            connection.execute("SELECT run, arm, task FROM story WHERE id = ?", (identity,)).fetchone()
            for identity in beside
        )


def arm_totals(index: Index) -> Iterator[sqlite3.Row]:
    """Yield the number of stories of each run, arm and outcome."""
    with index.connect() as connection:
        yield from connection.execute(
            "SELECT run, arm, outcome, count(*) AS stories FROM story GROUP BY run, arm, outcome"
        ).fetchall()
