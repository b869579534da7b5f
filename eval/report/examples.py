"""Advice of several arms on the same failures, and what the actor then did: tasks picked by hash, texts as written."""

from bisect import insort
from collections.abc import Iterable, Sequence
from hashlib import sha256
from operator import itemgetter

from retroformer.environments.extras import ReportedArm, SeedFacts, TaskFacts
from retroformer.markdown import plain, quoted, table
from retroformer.records import Outcome, Trajectory

EXAMPLES = 5
"""Number of failures whose advice is shown."""
ACTIONS_SHOWN = 6
_LONGEST_TEXT = 300
"""Most characters shown of one piece of advice, and of a task's text; the store has the whole text."""
_LONGEST_ACTION = 80


class Examples:
    """First failures, by the SHA-256 of their task ids, about which every arm of `names` wrote something.

    Without names, these are the arms that wrote anything at all. An arm with several training seeds shows its first.
    """

    def __init__(self, arms: Sequence[ReportedArm], names: Iterable[str] | None) -> None:
        chosen = None if names is None else set(names)
        self._arms = {arm.stored_names[0]: arm.name for arm in arms if chosen is None or arm.name in chosen}
        self._all_write = chosen is not None
        self._writing: set[str] = set()
        self._first: dict[frozenset[str], list[tuple[str, TaskFacts]]] = {}
        """First tasks by the arms that wrote about trial 0, with their digests; who writes is known only at the end."""

    def add(self, facts: TaskFacts) -> None:
        """Record the advice about one task."""
        seeds = {stored: facts.seeds[stored] for stored in self._arms}
        for stored, seed in seeds.items():
            if any(advice.text.strip() for advice in seed.reflections.values()):
                self._writing.add(stored)
        # An agent that judges itself also reflects on games that it has won.
        failed = {stored: seed for stored, seed in seeds.items() if _lost_first(seed) and 1 in seed.reflections}
        if wrote := frozenset(stored for stored, seed in failed.items() if _advice(seed)):
            first = self._first.setdefault(wrote, [])
            insort(first, (sha256(facts.task_id.encode()).hexdigest(), facts), key=itemgetter(0))
            del first[EXAMPLES:]

    def render(self) -> str:
        """Return Markdown: the rule of selection, then a table for each task; empty if no arm wrote advice."""
        if not self._writing:
            return ""
        shown = set(self._arms) if self._all_write else self._writing
        names = ", ".join(f"*{plain(name)}*" for stored, name in self._arms.items() if stored in shown)
        found = [pair for wrote, first in self._first.items() if wrote >= shown for pair in first]
        if not found:
            return f"There is no task at whose first failure each of these arms wrote something: {names}."
        tasks = [facts for _, facts in sorted(found, key=itemgetter(0))[:EXAMPLES]]
        first = "The first task" if len(tasks) == 1 else f"The first {len(tasks)} tasks"
        rule = (
            f"{first}, in the order of the SHA-256 of their id, that failed at trial 0 and about "
            f"which each of these arms wrote something: {names}."
        )
        return "\n\n".join([rule, *(self._render(facts, shown) for facts in tasks)])

    def _render(self, facts: TaskFacts, shown: set[str]) -> str:
        seeds = {name: facts.seeds[stored] for stored, name in self._arms.items() if stored in shown}
        failures = {name: seed.attempts[0] for name, seed in seeds.items()}
        first = next(iter(failures.values()))
        task = quoted("".join(first.opening.strip().splitlines()[-1:]), _LONGEST_TEXT)
        rows = [["trial 0", "", "failed", moves(first)]]
        if any(failure != first for failure in failures.values()):
            rows = [[f"trial 0 of {plain(name)}", "", "failed", moves(failure)] for name, failure in failures.items()]
        rows += [_row(name, seed) for name, seed in seeds.items()]
        # The viewer links a task's name in the row of an arm to the story.
        header = ["arm", "advice", "result", "the actor", "task"]
        return table(header, [[*row, plain(facts.task_id)] for row in rows], task)


def moves(attempt: Trajectory) -> str:
    """Return the first actions and the ending as Markdown: `go to bed 1; ...; 15 actions, step limit`."""
    actions = [quoted(step.action, _LONGEST_ACTION) for step in attempt.steps]
    more = ["..."] if len(actions) > ACTIONS_SHOWN else []
    ending = f"{len(actions)} action{'' if len(actions) == 1 else 's'}, {attempt.ending.value}"
    return "; ".join([*actions[:ACTIONS_SHOWN], *more, ending])


def _row(name: str, seed: SeedFacts) -> list[str]:
    retry = seed.attempts.get(1)
    advice = quoted(_advice(seed), _LONGEST_TEXT)
    if retry is None or retry.outcome is Outcome.INVALID:
        return [plain(name), advice, "not tried", "-"]
    return [plain(name), advice, "solved" if retry.outcome is Outcome.SUCCESS else "failed", moves(retry)]


def _lost_first(seed: SeedFacts) -> bool:
    return 0 in seed.attempts and seed.attempts[0].outcome is Outcome.FAILURE


def _advice(seed: SeedFacts) -> str:
    return seed.reflections[1].text.strip()
