"""Chapters on the advice itself: pieces that give the solution away, pieces that were retrieved, and examples."""

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

from retroformer.agents.arms.retrieved import RetrievedArm, load_rated_advice, one_line
from retroformer.environments.extras import LeakCheck, SeedFacts, TaskFacts
from retroformer.environments.registry import extras
from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.files.document import (
    DASH,
    Cell,
    Chapter,
    Row,
    Table,
    arm_cell,
    chapter,
    code,
    emphasis,
    joined,
    number,
    quoted,
    share,
    table,
)
from retroformer.method.records import Outcome, Trajectory

from .evaluation import Evaluated, each_seed
from .headline import is_yardstick

_LEAKS_SHOWN = 3
"""Most examples of advice that gives something away, for each arm."""
_LEAK_SHOWN = 200
"""Most characters shown of such advice; the store has all."""
_LEAKS_NOTE = " A reflector that knows the solution from its own training, or guesses right, is counted as well."
_PIECES_SHOWN = 10
"""Most pieces of retrieved advice shown of each arm, the most often retrieved first."""
_PIECE_SHOWN = 160
"""Most characters shown of one piece; the store has all."""
_RETRIEVED_NOTE = (
    "The gain of a retry is its return minus that of the attempt before. The rating while collecting is the mean gain "
    "on the training tasks, with the number of uses. Older advice that the actor still remembers is not credited."
)
_LEARNING_NOTE = (
    " An arm that learns counts these gains when it chooses advice for later tasks. A choice depends on the tasks in "
    "the chunks before its own, never on the outcome of its own task."
)
EXAMPLES = 5
"""Number of failures whose advice is shown."""
ACTIONS_SHOWN = 6
_LONGEST_TEXT = 300
"""Most characters shown of one piece of advice, and of a task's text; the store has the whole text."""
_LONGEST_ACTION = 80


class _Leak(NamedTuple):
    """Piece of advice that gives something away."""

    task_id: str
    given_away: str
    advice: str


class Leaks:
    """Chapter that counts the pieces of advice that give a part of the solution away that the agent could not know."""

    def __init__(self, evaluated: Evaluated) -> None:
        experiment = evaluated.experiment
        check = extras(experiment.environment).leak_check
        self._check: LeakCheck | None = check(experiment.environment, experiment.seed) if check is not None else None
        self._evaluated = evaluated
        self._counts = {arm.name: Counter[str]() for arm in evaluated.results}
        self._examples: dict[str, list[_Leak]] = {arm.name: [] for arm in evaluated.results}

    def add(self, facts: TaskFacts) -> None:
        """Check the advice about one task."""
        if self._check is None:
            return
        for arm, seed in each_seed(self._evaluated.results, facts):
            self._add(self._check, arm.name, facts.task_id, seed)

    def _add(self, check: LeakCheck, name: str, task_id: str, seed: SeedFacts) -> None:
        for trial, reflection in seed.reflections.items():
            attempts = [attempt for made, attempt in sorted(seed.attempts.items()) if made < trial]
            if trial == 0 and 0 in seed.attempts:
                # Before the first attempt, the task's opening is all that advice can have been written from.
                attempts = [seed.attempts[0].model_copy(update={"steps": ()})]
            if not attempts or not reflection.text.strip():
                continue
            self._counts[name]["pieces"] += 1
            try:
                given_away = check.given_away(reflection.text, attempts)
            except (UnknownTask, MissingInput, EnvironmentFailure):
                self._counts[name]["unchecked"] += 1
                continue
            if given_away:
                self._counts[name]["leaks"] += 1
                if len(self._examples[name]) < _LEAKS_SHOWN:
                    self._examples[name].append(_Leak(task_id, given_away, reflection.text))

    def chapters(self) -> Iterator[Chapter]:
        """Yield the chapter, unless the environment has no check or no arm wrote anything."""
        rows = [
            [
                arm_cell(name, name + " (reads the solution)" * is_yardstick(self._evaluated.experiment, name)),
                number(counts["pieces"]),
                number(counts["unchecked"]),
                share(counts["leaks"], counts["pieces"] - counts["unchecked"]),
            ]
            for name, counts in self._counts.items()
            if counts["pieces"]
        ]
        if self._check is None or not rows:
            return
        examples: list[Row] = [
            [
                arm_cell(name),
                Cell(words=leak.task_id, arms=(name,), task=leak.task_id),
                quoted(leak.given_away, _LEAK_SHOWN),
                quoted(leak.advice, _LEAK_SHOWN),
            ]
            for name, of_arm in self._examples.items()
            for leak in of_arm
        ]
        rule = (self._check.rule,) if isinstance(self._check.rule, str) else self._check.rule
        header = ["arm", "pieces of advice", "could not be checked", "give something away"]
        shown = [table(header, rows, "Advice that gives a part of the solution away.")]
        if examples:
            header = ["arm", "task", "given away", "advice"]
            shown.append(table(header, examples, "Examples of what advice gave away."))
        yield chapter("Advice that gives the solution away", (*rule, _LEAKS_NOTE), *shown)


@dataclass
class _Piece:
    """Retries made with one piece of advice."""

    text: str
    source: str
    gains: list[float] = field(default_factory=list)
    solved: int = 0


class RetrievedAdvice:
    """Chapter on which advice was retrieved how often, and what the retries gained that were made with it."""

    def __init__(self, evaluated: Evaluated) -> None:
        arms = evaluated.experiment.eval.arms
        self._evaluated = evaluated
        self._arms = {name: arm for name, arm in arms.items() if isinstance(arm, RetrievedArm)}
        self._results = [arm for arm in evaluated.results if arm.name in self._arms]
        self._pieces: dict[str, dict[str, _Piece]] = {arm.name: {} for arm in self._results}

    def add(self, facts: TaskFacts) -> None:
        """Count the retries of one task."""
        for arm, seed in each_seed(self._results, facts):
            self._add(self._pieces[arm.name], seed)

    def _add(self, pieces: dict[str, _Piece], seed: SeedFacts) -> None:
        for trial, reflection in seed.reflections.items():
            before, after = seed.attempts.get(trial - 1), seed.attempts.get(trial)
            if before is None or after is None or not reflection.text:
                continue
            piece = pieces.setdefault(one_line(reflection.text), _Piece(reflection.text, reflection.author.model))
            piece.gains.append(after.episode_return - before.episode_return)
            piece.solved += after.outcome is Outcome.SUCCESS

    def chapters(self) -> Iterator[Chapter]:
        """Yield a row for each arm, and one for each of its pieces, if any were retrieved."""
        if not any(self._pieces.values()):
            return
        arms = [self._arm_row(name, list(pieces.values())) for name, pieces in self._pieces.items()]
        ratings = self._ratings()
        rows: list[Row] = [
            [
                arm_cell(name),
                quoted(piece.text, _PIECE_SHOWN),
                Cell(words=(code(piece.source),)),
                _mean(ratings.get(one_line(piece.text), [])),
                *_gained(piece.gains, piece.solved),
            ]
            for name, pieces in self._pieces.items()
            for piece in sorted(pieces.values(), key=lambda piece: (-len(piece.gains), piece.text))[:_PIECES_SHOWN]
        ]
        header = ["retries", "mean gain", "solved"]
        by_arm = table(["arm", "learns", "pieces retrieved", *header], arms, "Retrieved advice by arm.")
        columns = ["arm", "advice", "written for", "rating while collecting", *header]
        by_piece = table(columns, rows, f"The {_PIECES_SHOWN} pieces that each arm retrieved most often.")
        learning = _LEARNING_NOTE if any(self._arms[arm.name].learns for arm in self._results) else ""
        yield chapter("Retrieved advice and what it brought", f"{_RETRIEVED_NOTE}{learning}", by_arm, by_piece)

    def _arm_row(self, name: str, pieces: list[_Piece]) -> Row:
        gains = [gain for piece in pieces for gain in piece.gains]
        learns = "yes" if self._arms[name].learns else "no"
        return [arm_cell(name), learns, number(len(pieces)), *_gained(gains, sum(piece.solved for piece in pieces))]

    def _ratings(self) -> dict[str, list[float]]:
        """Return the ratings of the collected advice by its text."""
        ratings: dict[str, list[float]] = {}
        for use in load_rated_advice(self._evaluated.store, self._evaluated.experiment.train.leave_out):
            ratings.setdefault(one_line(use.text), []).append(use.rating)
        return ratings


def _gained(gains: list[float], solved: int) -> Row:
    return [number(len(gains)), number(fmean(gains), "+.3f") if gains else DASH, share(solved, len(gains))]


def _mean(ratings: list[float]) -> str | Cell:
    return number(fmean(ratings), "+.3f", f" ({len(ratings)})") if ratings else DASH


class Examples:
    """Chapter with the first failures, by the SHA-256 of their task ids, about which every arm wrote something.

    The arms are those of `eval.examples`; without it, those that wrote anything at all. An arm with several training
    seeds shows its first. Texts are shown as written, with what the actor then did.
    """

    def __init__(self, evaluated: Evaluated) -> None:
        chosen = evaluated.experiment.eval.examples
        arms = [arm for arm in evaluated.results if chosen is None or arm.name in chosen]
        self._arms = {arm.stored_names[0]: arm.name for arm in arms}
        self._seeds = {arm.name: arm.seeds[0].name for arm in arms}
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

    def chapters(self) -> Iterator[Chapter]:
        """Yield the rule of selection, then a table for each task, if any arm wrote advice."""
        if not self._writing:
            return
        shown = set(self._arms) if self._all_write else self._writing
        names = joined(", ", (emphasis(name) for stored, name in self._arms.items() if stored in shown))
        found = [pair for wrote, first in self._first.items() if wrote >= shown for pair in first]
        tasks = [facts for _, facts in sorted(found, key=itemgetter(0))[:EXAMPLES]]
        first = "The first task" if len(tasks) == 1 else f"The first {len(tasks)} tasks"
        rule = (
            f"{first}, in the order of the SHA-256 of their id, that failed at trial 0 and about which each of these "
            "arms wrote something: "
        )
        if not tasks:
            rule = "There is no task at whose first failure each of these arms wrote something: "
        yield chapter(
            "Advice that the arms wrote", (rule, *names, "."), *(self._table(facts, shown) for facts in tasks)
        )

    def _table(self, facts: TaskFacts, shown: set[str]) -> Table:
        seeds = {name: facts.seeds[stored] for stored, name in self._arms.items() if stored in shown}
        failures = {name: seed.attempts[0] for name, seed in seeds.items()}
        first = next(iter(failures.values()))
        task = quoted("".join(first.opening.strip().splitlines()[-1:]), _LONGEST_TEXT)
        rows: list[Row] = [["trial 0", "", "failed", moves(first), facts.task_id]]
        if any(failure != first for failure in failures.values()):
            rows = [
                [f"trial 0 of {name}", "", "failed", moves(failure), facts.task_id]
                for name, failure in failures.items()
            ]
        for name, seed in seeds.items():
            story = Cell(words=facts.task_id, arms=(self._seeds[name],), task=facts.task_id)
            rows.append([arm_cell(name), quoted(_advice(seed), _LONGEST_TEXT), *_retry(seed), story])
        return table(["arm", "advice", "result", "the actor", "task"], rows, task)


def moves(attempt: Trajectory) -> str:
    """Return the first actions and the ending: `go to bed 1; ...; 15 actions, step limit`."""
    actions = [quoted(step.action, _LONGEST_ACTION) for step in attempt.steps]
    more = ["..."] if len(actions) > ACTIONS_SHOWN else []
    ending = f"{len(actions)} action{'' if len(actions) == 1 else 's'}, {attempt.ending.value}"
    return "; ".join([*actions[:ACTIONS_SHOWN], *more, ending])


def _retry(seed: SeedFacts) -> tuple[str, str]:
    """Return the result of the first retry, and what the actor did."""
    retry = seed.attempts.get(1)
    if retry is None or retry.outcome is Outcome.INVALID:
        return "not tried", DASH
    return "solved" if retry.outcome is Outcome.SUCCESS else "failed", moves(retry)


def _lost_first(seed: SeedFacts) -> bool:
    return 0 in seed.attempts and seed.attempts[0].outcome is Outcome.FAILURE


def _advice(seed: SeedFacts) -> str:
    return seed.reflections[1].text.strip()
