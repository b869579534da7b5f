"""Links from the names in a report's tables to the stories behind them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol
from urllib.parse import quote

from markupsafe import Markup

from .sorting import ReportCell

_Arms = Mapping[str, Sequence[str]]
"""Names in the store by the name of an arm or of a training seed."""


class ReportLinks(Protocol):
    """Addresses of what stands behind a report; empty where there is none."""

    def stories(self, stored: Sequence[str]) -> str:
        """Return the address of the stories of an arm, given the names of its training seeds in the store."""
        ...

    def story(self, stored: str, task_id: str) -> str:
        """Return the address of one story."""
        ...

    def comparison(self, first: Sequence[str], second: Sequence[str]) -> str:
        """Return the address of the comparison of two arms."""
        ...

    def part(self, name: str) -> str:
        """Return the address of the report about an actor, a repeat or a domain."""
        ...


class NoLinks:
    """Links of a file of its own, which is opened without the site: only to the files of its parts."""

    def stories(self, stored: Sequence[str]) -> str:
        return ""

    def story(self, stored: str, task_id: str) -> str:
        return ""

    def comparison(self, first: Sequence[str], second: Sequence[str]) -> str:
        return ""

    def part(self, name: str) -> str:
        return f"{quote(name)}/report.html"


def linked_row(
    header: Sequence[str], row: Sequence[ReportCell], arms: _Arms, links: ReportLinks
) -> Sequence[ReportCell]:
    """Return a row of a table with links from arms to their stories, and from differences to the comparison."""
    cells, columns = list(row), {name: column for column, name in enumerate(header)}

    def stored(column: int) -> Sequence[str]:
        return _stored(row[column].text, row[0].text, arms)

    for name in ("arm", "first arm", "second arm"):
        if name in columns:
            column = columns[name]
            cells[column] = _linked(cells[column], links.stories(stored(column)) if stored(column) else "")
            cells[column] = replace(cells[column], within=_is_seed(row[column].text, arms))
    if {"first arm", "second arm", "first - second"} <= columns.keys():
        first, second = stored(columns["first arm"]), stored(columns["second arm"])
        if first and second:
            column = columns["first - second"]
            cells[column] = _linked(cells[column], links.comparison(first, second))
    if {"task", "arm"} <= columns.keys() and len(stored(columns["arm"])) == 1:
        column = columns["task"]
        cells[column] = _linked(cells[column], links.story(stored(columns["arm"])[0], row[column].text))
    return cells


def _stored(text: str, actor: str, arms: _Arms) -> Sequence[str]:
    """Return the names in the store of the arm in a cell, which may say more behind the name; none if it is no arm."""
    names = (text, f"{actor}/{text}", text.rpartition(", ")[0], text.rpartition(" (")[0])
    return next((arms[name] for name in names if name in arms), ())


def _is_seed(text: str, arms: _Arms) -> bool:
    parent = arms.get(text.rpartition("/")[0], ())
    return len(parent) > 1 and any(text in arms and stored in parent for stored in arms.get(text, ()))


def _linked(cell: ReportCell, address: str) -> ReportCell:
    return replace(cell, html=Markup('<a href="{}">{}</a>').format(address, cell.html)) if address else cell
