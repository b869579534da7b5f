"""Compare: two arms, runs or groups of training seeds on the same tasks: won, lost, both, neither, and by how much."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...measure.results import Floats
from ...measure.statistics import bootstrap, difference, mcnemar, plain_p
from ..index import Index
from ..site import NoSuchPage, Page, Site

_MOST_TRIALS = 50
_MOST_LISTED = 1000
"""Most tasks on a page."""
GROUPS = {
    "won": "Solved by A, not by B",
    "lost": "Solved by B, not by A",
    "both": "Solved by both",
    "neither": "Solved by neither",
}


@dataclass(frozen=True)
class Side:
    """What is compared: an arm of a run, or all training seeds of an arm."""

    run: str
    arm: str
    stored: tuple[str, ...]
    """Names of the arms in the store: one, or one for each training seed."""

    @property
    def name(self) -> str:
        """Name in the page and in its URL."""
        seeds = f" ({len(self.stored)} seeds)" if len(self.stored) > 1 else ""
        return f"{self.run}: {self.arm}{seeds}"


def compare(site: Site, parameters: Mapping[str, str]) -> Page:
    """Compare the two sides that the query names, and list the tasks of the group that it names.

    By default these are the last two arms of the first run with two, and the tasks that only A solved.
    """
    every = sides(site.index)
    if len(every) < 2:
        return Page("message.html", "Compare", {"text": "There is nothing to compare: these runs have one arm."})
    *_, second, first = _comparable(every)
    by_name = {side.name: side for side in every}
    for name in ("a", "b"):
        if parameters.get(name, "") not in ("", *by_name):
            raise NoSuchPage(f"There is no arm {parameters[name]!r} to compare.")
    first, second = by_name.get(parameters.get("a", ""), first), by_name.get(parameters.get("b", ""), second)
    shown = [name for name in GROUPS if name == parameters.get("show", "won")]
    return comparison(site, every, (first, second), shown, _MOST_LISTED)


def comparison(site: Site, every: Sequence[Side], pair: tuple[Side, Side], shown: Sequence[str], most: int) -> Page:
    """Compare a pair of all sides, and list at most so many tasks of each of the shown groups."""
    first, second = pair
    by_task = [_solved_at(site.index, side) for side in (first, second)]
    tasks = sorted(by_task[0].keys() & by_task[1].keys())
    trials_ST = [np.array([side[task] for task in tasks], dtype=float).T for side in by_task]
    solved = [trials[0] if len(trials) == 1 else trials for trials in trials_ST]
    groups = _groups(tasks, solved) if tasks else {}
    return Page(
        "compare.html",
        "Compare",
        {
            "sides": every,
            "a": first,
            "b": second,
            "tasks": len(tasks),
            "lines": list(_lines(solved)) if tasks else [],
            "groups": {name: len(members) for name, members in groups.items()},
            "meanings": GROUPS,
            "lists": {name: groups[name][:most] for name in shown if tasks},
        },
    )


def sides(index: Index) -> list[Side]:
    """Return all arms, and behind the seeds of an arm all of them together."""
    with index.connect() as connection:
        rows = connection.execute("SELECT DISTINCT run, arm FROM story ORDER BY run, arm").fetchall()
    sides = [Side(row["run"], row["arm"], (row["arm"],)) for row in rows]
    seeds: dict[tuple[str, str], list[str]] = {}
    for side in sides:
        parent, slash, _ = side.arm.rpartition("/")
        if slash and "/" in parent:
            seeds.setdefault((side.run, parent), []).append(side.arm)
    pooled = [Side(run, arm, tuple(stored)) for (run, arm), stored in seeds.items() if len(stored) > 1]
    return sides + pooled


def evaluated_sides(sides: Sequence[Side]) -> list[Side]:
    """Return the evaluated arms; the training seeds of an arm are one side."""
    pooled = {(side.run, stored) for side in sides if len(side.stored) > 1 for stored in side.stored}
    return [side for side in sides if side.arm.startswith("eval/") and (side.run, side.arm) not in pooled]


def _comparable(sides: Sequence[Side]) -> Sequence[Side]:
    """Return the evaluated arms of the first run that has two, else all arms of the first run with two, else all."""
    for some in (evaluated_sides(sides), sides):
        for run in dict.fromkeys(side.run for side in some):
            mine = [side for side in some if side.run == run]
            if len(mine) > 1:
                return mine
    return sides


def _solved_at(index: Index, side: Side) -> dict[str, list[float]]:
    """Return the trial that solved each task, one for each seed and infinite if none did.

    Tasks that a seed lacks are left out.
    """
    solved: dict[str, list[float]] = {}
    query = "SELECT task, ifnull(solved_at, 9e999) FROM story WHERE run = ? AND arm = ? AND outcome != 'invalid'"
    with index.connect() as connection:
        for arm in side.stored:
            for task, trial in connection.execute(query, (side.run, arm)):
                solved.setdefault(task, []).append(trial)
    return {task: trials for task, trials in solved.items() if len(trials) == len(side.stored)}


def _lines(solved: Sequence[Floats]) -> Iterable[Mapping[str, Any]]:
    """Yield a line for each trial, from the trials that solved each task on both sides: (T), or (S, T) with seeds.

    It has the shares solved, their difference as in a report, and the exact p-value of McNemar's test; None for
    training seeds, whose mean is no single outcome.
    """
    last = max((float(side[np.isfinite(side)].max(initial=0)) for side in solved), default=0)
    for trial in range(min(int(last), _MOST_TRIALS) + 1):
        first, second = ((side <= trial).astype(float) for side in solved)
        p = plain_p(mcnemar(first, second)) if first.ndim == second.ndim == 1 else None
        interval = bootstrap(difference(first, second))
        yield {"trial": trial, "first": first.mean(), "second": second.mean(), "difference": interval, "p": p}


def _groups(tasks: Sequence[str], solved: Sequence[Floats]) -> dict[str, list[tuple[str, float, float]]]:
    """Return the tasks of each group with both shares of seeds that solved them in the end."""
    groups: dict[str, list[tuple[str, float, float]]] = {name: [] for name in GROUPS}
    shares = (np.atleast_2d(np.isfinite(side)).mean(axis=0).tolist() for side in solved)
    for task, first, second in zip(tasks, *shares, strict=True):
        name = "won" if first > second else "lost" if second > first else "both" if first else "neither"
        groups[name].append((task, first, second))
    return groups
