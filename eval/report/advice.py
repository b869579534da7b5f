"""Chapters on the advice itself: pieces that give the solution away, and examples."""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from itertools import chain
from operator import itemgetter

from retroformer.environments.extras import LeakCheck, SeedFacts, TaskFacts
from retroformer.environments.registry import extras
from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.files import document as doc
from retroformer.method.records import Outcome, Trajectory

from .report_input import ReportInput, each_seed

_LEAKS_SHOWN = 3
"""Most examples of advice that gives something away, for each arm."""
_LEAK_SHOWN = 200
"""Most characters shown of such advice; the store has all."""
_LEAKS_NOTE = " A reflector that knows the solution from its own training, or guesses right, is counted as well."
EXAMPLES = 5
"""Number of failures whose advice is shown."""
ACTIONS_SHOWN = 6
_LONGEST_TEXT = 300
"""Most characters shown of one piece of advice, and of a task's text; the store has the whole text."""
_LONGEST_ACTION = 80


class Leaks:
    """Chapter that counts the pieces of advice that give a part of the solution away that the agent could not know."""

    def __init__(self, evaluation: ReportInput) -> None:
        experiment = evaluation.experiment
        check = extras(experiment.environment).leak_check
        self._check: LeakCheck | None = check(experiment.environment, experiment.seed) if check is not None else None
        self._evaluation = evaluation
        self._counts = {arm.name: Counter[str]() for arm in evaluation.results}
        self._examples: dict[str, list[doc.Row]] = {arm.name: [] for arm in evaluation.results}

    def add(self, facts: TaskFacts) -> None:
        for arm, seed in each_seed(self._evaluation.results, facts) if self._check else ():
            for trial, reflection in seed.reflections.items():
                attempts = [attempt for played_at, attempt in sorted(seed.attempts.items()) if played_at < trial]
                if trial == 0 and 0 in seed.attempts:
                    # Before the first attempt, the task's opening is all that advice can have been written from.
                    attempts = [seed.attempts[0].model_copy(update={"steps": ()})]
                if attempts and reflection.text.strip():
                    self._add(arm.name, facts.task_id, reflection.text, attempts)

    def _add(self, name: str, task_id: str, advice: str, attempts: list[Trajectory]) -> None:
        assert self._check is not None
        self._counts[name]["pieces"] += 1
        try:
            given_away = self._check.given_away(advice, attempts)
        except (UnknownTask, MissingInput, EnvironmentFailure):
            self._counts[name]["unchecked"] += 1
            return
        self._counts[name]["leaks"] += bool(given_away)
        if given_away and len(self._examples[name]) < _LEAKS_SHOWN:
            story = doc.Cell(words=task_id, arms=(name,), task=task_id)
            self._examples[name].append(
                {
                    "arm": doc.arm_cell(name),
                    "task": story,
                    "given away": doc.quoted(given_away, _LEAK_SHOWN),
                    "advice": doc.quoted(advice, _LEAK_SHOWN),
                }
            )

    def chapters(self) -> Iterator[doc.Chapter]:
        """Yield the chapter, unless the environment has no check or no arm wrote anything."""
        rows: list[doc.Row] = [
            {
                "arm": doc.arm_cell(name, name + " (reads the solution)" * self._evaluation.reads_solution(name)),
                "pieces of advice": counts["pieces"],
                "could not be checked": counts["unchecked"],
                "give something away": doc.share(counts["leaks"], counts["pieces"] - counts["unchecked"]),
            }
            for name, counts in self._counts.items()
            if counts["pieces"]
        ]
        if self._check is None or not rows:
            return
        rule = (self._check.rule,) if isinstance(self._check.rule, str) else self._check.rule
        shown = [doc.table(rows, "Advice that gives a part of the solution away.")]
        if examples := list(chain.from_iterable(self._examples.values())):
            shown.append(doc.table(examples, "Examples of what advice gave away."))
        yield doc.chapter("Advice that gives the solution away", (*rule, _LEAKS_NOTE), *shown)


class Examples:
    """Chapter with the first failures, by the SHA-256 of their task ids, about which every arm wrote something.

    The arms are those of `eval.examples`; without it, those that wrote anything at all. An arm with several training
    seeds shows its first. Texts are shown as written, with what the actor then did.
    """

    def __init__(self, evaluation: ReportInput) -> None:
        chosen = evaluation.experiment.eval.examples
        arms = [arm for arm in evaluation.results if chosen is None or arm.name in chosen]
        self._arms = {arm.stored_names[0]: arm.name for arm in arms}
        self._seeds = {arm.name: arm.seeds[0].name for arm in arms}
        self._all_write = chosen is not None
        self._writing: set[str] = set()
        self._first: dict[frozenset[str], list[tuple[str, TaskFacts]]] = {}
        """First tasks by the arms that wrote about trial 0, with their digests; who writes is known only at the end."""

    def add(self, facts: TaskFacts) -> None:
        seeds = {stored: facts.seeds[stored] for stored in self._arms}
        for stored, seed in seeds.items():
            if any(advice.text.strip() for advice in seed.reflections.values()):
                self._writing.add(stored)
        # An agent that judges itself also reflects on games that it has won.
        lost = [s for s, seed in seeds.items() if 0 in seed.attempts and seed.attempts[0].outcome is Outcome.FAILURE]
        if wrote := frozenset(stored for stored in lost if 1 in seeds[stored].reflections and _advice(seeds[stored])):
            first = self._first.setdefault(wrote, [])
            insort(first, (sha256(facts.task_id.encode()).hexdigest(), facts), key=itemgetter(0))
            del first[EXAMPLES:]

    def chapters(self) -> Iterator[doc.Chapter]:
        """Yield the rule of selection, then a table for each task, if any arm wrote advice."""
        if not self._writing:
            return
        shown = set(self._arms) if self._all_write else self._writing
        names = doc.join_words(", ", (doc.emphasis(name) for stored, name in self._arms.items() if stored in shown))
        complete = chain.from_iterable(first for wrote, first in self._first.items() if wrote >= shown)
        tasks = [facts for _, facts in sorted(complete, key=itemgetter(0))[:EXAMPLES]]
        first = "The first task" if len(tasks) == 1 else f"The first {len(tasks)} tasks"
        rule = (
            f"{first}, in the order of the SHA-256 of their id, that failed at trial 0 and about which each of these "
            "arms wrote something: "
        )
        if not tasks:
            rule = "There is no task at whose first failure each of these arms wrote something: "
        yield doc.chapter(
            "Advice that the arms wrote", (rule, *names, "."), *(self._table(facts, shown) for facts in tasks)
        )

    def _table(self, facts: TaskFacts, writing: set[str]) -> doc.Table:
        seeds = {name: facts.seeds[stored] for stored, name in self._arms.items() if stored in writing}
        failures = {name: seed.attempts[0] for name, seed in seeds.items()}
        first = next(iter(failures.values()))
        task = doc.quoted("".join(first.opening.strip().splitlines()[-1:]), _LONGEST_TEXT)
        attempts = {"trial 0": first}
        if any(failure != first for failure in failures.values()):
            attempts = {f"trial 0 of {name}": failure for name, failure in failures.items()}
        rows: list[doc.Row] = [
            {"arm": name, "advice": "", "result": "failed", "the actor": moves(failure), "task": facts.task_id}
            for name, failure in attempts.items()
        ]
        for name, seed in seeds.items():
            story = doc.Cell(words=facts.task_id, arms=(self._seeds[name],), task=facts.task_id)
            result, did = _retry(seed)
            advice = doc.quoted(_advice(seed), _LONGEST_TEXT)
            rows.append(
                {"arm": doc.arm_cell(name), "advice": advice, "result": result, "the actor": did, "task": story}
            )
        return doc.table(rows, task)


def moves(attempt: Trajectory) -> str:
    """Return the first actions and the ending: `go to bed 1; ...; 15 actions, step limit`."""
    actions = [doc.quoted(step.action, _LONGEST_ACTION) for step in attempt.steps]
    more = ["..."] if len(actions) > ACTIONS_SHOWN else []
    ending = f"{len(actions)} action{'' if len(actions) == 1 else 's'}, {attempt.ending.value}"
    return "; ".join([*actions[:ACTIONS_SHOWN], *more, ending])


def _retry(seed: SeedFacts) -> tuple[str, str]:
    retry = seed.attempts.get(1)
    if retry is None or retry.outcome is Outcome.INVALID:
        return "not tried", doc.DASH
    return "solved" if retry.outcome is Outcome.SUCCESS else "failed", moves(retry)


def _advice(seed: SeedFacts) -> str:
    return seed.reflections[1].text.strip()
