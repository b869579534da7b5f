"""Report chapters about advice in ALFWorld: counts, per arm, of what was written and what the actor did with it.

It uses the rule actor's shallow reader (`retroformer.environments.alfworld.reader`), so advice in words that the
reader does not understand counts as advice that names no place to search.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.clauses import clauses_of
from retroformer.environments.alfworld.compact import type_of
from retroformer.environments.alfworld.reader import read_advice
from retroformer.environments.alfworld.reading import read_solution
from retroformer.environments.alfworld.reflection import (
    FIRST_MOVES,
    AttemptReading,
    Reading,
    ReflectionCase,
    first_walks,
    read_attempt,
    read_reflection,
    reflection_cases,
)
from retroformer.environments.extras import ReportedArm, TaskFacts
from retroformer.files.document import Chapter, Row, Table, arm_cell, chapter, code, number, share, table
from retroformer.method.records import Outcome, Task, Trajectory

_OBJECTS = 6
"""Number of goal objects shown, those with the most failures first."""
_PLACE_TYPES = 3
"""Number of types of place shown for each object."""
HABITS_NOTE = (
    "Types of place where successful attempts picked the object up, next to those where each arm sends to look for it "
    "and nobody had looked, with the number of its reflections that do."
)


class Telemetry(NamedTuple):
    """Counts over the reflections of one arm."""

    arm: str
    reflections: int
    distinct: int
    """Number of different texts, whitespace normalised."""
    words: int
    """Words in all reflections."""
    naming: int
    """Reflections that name a place of the room; the others say nothing usable."""
    searching_on: int
    """Reflections that send the actor to a place that the failed attempt had not looked into."""
    restating: int
    """Reflections that name only places searched in vain, or repeat a text that the failed attempt had read."""
    unsearched: int
    """Places to search, over all reflections, that the failed attempt had not looked into."""
    seen: int
    """Places to search where it had seen a thing that the task needs."""
    in_vain: int
    """Places to search where it had looked and seen no such thing."""
    invented: int
    """Places to search that the room lacks."""
    sighted: int
    """Failures that saw a thing that the task needs."""
    locating: int
    """Reflections on those failures that say where it was."""
    sent_back: int
    """Reflections on those failures that send the actor there, in any words."""
    retries: int
    directed: int
    """Retries whose advice sends the actor to a place of the room."""
    followed: int
    """Retries among those that walked to such a place in their first moves."""
    solved: int
    """Retries that solved the task."""

    @property
    def places(self) -> int:
        """Number of places to search."""
        return self.unsearched + self.seen + self.in_vain + self.invented


class Habit(NamedTuple):
    """Object, with the places where the arms search for it and where it is."""

    thing: str
    failures: int
    """Failed attempts at tasks that ask for it, each counted once for all arms."""
    finds: Counter[str]
    """Type of place -> rooms where a successful attempt picked the thing up there."""
    guesses: Mapping[str, Counter[str]]
    """Arm -> type of place -> reflections that send the actor to an unsearched place of the type."""


class TelemetryCounter:
    """Counter over the reflections of one arm."""

    def __init__(self, arm: str) -> None:
        self._arm = arm
        self._counts: Counter[str] = Counter()
        self._texts = array("q")
        """Hashes of the texts: the texts themselves would not fit into memory."""

    def add(self, case: ReflectionCase, reading: Reading) -> None:
        """Count one reflection."""
        words = case.text.split()
        self._texts.frombytes(blake2b(" ".join(words).encode(errors="surrogatepass"), digest_size=8).digest())
        directed = case.tried and bool(reading.sent)
        self._counts.update(
            reflections=1,
            words=len(words),
            naming=bool(reading.named),
            searching_on=bool(reading.unsearched),
            restating=reading.restates,
            unsearched=len(reading.unsearched),
            seen=len(reading.sent_back),
            in_vain=len(reading.in_vain),
            invented=len(reading.invented),
            sighted=bool(reading.seen_at),
            locating=bool(reading.seen_at and reading.located),
            sent_back=bool(reading.seen_at and reading.sent_back),
            retries=case.tried,
            directed=directed,
            followed=directed and case.retry is not None and not set(first_walks(case.retry)).isdisjoint(reading.sent),
            solved=case.solved,
        )

    @property
    def telemetry(self) -> Telemetry:
        """Counts so far."""
        counted = {name: self._counts[name] for name in Telemetry._fields if name not in ("arm", "distinct")}
        return Telemetry(arm=self._arm, distinct=len(set(self._texts)), **counted)


class HabitCounter:
    """Counter, for each goal object, of where each arm guesses it to be and where successful attempts took it.

    A guess is a place that the failed attempt had not looked into. A type of place counts once per reflection as a
    guess and once per task as a find, so many drawers do not outweigh one desk, nor many attempts one room.
    """

    def __init__(self, arms: Sequence[str]) -> None:
        self._arms = arms
        self._failures: Counter[str] = Counter()
        self._guesses: dict[str, dict[str, Counter[str]]] = {}
        self._finds: dict[str, Counter[str]] = {}

    def add(
        self,
        cases: Mapping[str, Sequence[tuple[ReflectionCase, Reading]]],
        successes: Iterable[tuple[Trajectory, AttemptReading]],
    ) -> None:
        """Count what the arms wrote about one task, and its successful attempts."""
        failures: dict[str, set[Trajectory]] = {}
        for arm, read in cases.items():
            for case, reading in read:
                thing = reading.goal.thing
                failures.setdefault(thing, set()).add(case.failure)
                guesses = self._guesses.setdefault(thing, {name: Counter() for name in self._arms})
                guesses[arm].update({compact.type_of(place) for place in reading.unsearched})
        for thing, failed in failures.items():
            self._failures[thing] += len(failed)
        finds = {find for attempt, attempted in successes for find in _finds(attempt, attempted)}
        for thing, kind in finds:
            self._finds.setdefault(thing, Counter())[kind] += 1

    @property
    def habits(self) -> list[Habit]:
        """Counts so far, by number of failures, then by name."""
        rows = [
            Habit(thing, failures, self._finds.get(thing, Counter()), self._guesses[thing])
            for thing, failures in self._failures.items()
            if thing
        ]
        return sorted(rows, key=lambda habit: (-habit.failures, habit.thing))


_TEXTS = (
    "arm | reflections | distinct | mean words | send to a place not yet searched | restate the failed plan | "
    "say nothing usable (no place of the room)"
)
_PLACES = (
    "arm | places to look into | not yet searched | the thing was seen there | searched in vain | not in this room | "
    "where the failure saw the thing: say where | send there"
)
_RETRIES = f"arm | retries | sent to a place of the room | went to one in the first {FIRST_MOVES} moves | solved"


def telemetry_tables(arms: Sequence[Telemetry]) -> list[Table]:
    """Return tables of the texts, where they send the actor, and what it did; silent arms are omitted."""
    texts, places, retries = list[Row](), list[Row](), list[Row]()
    for arm in arms:
        if not arm.words:
            continue
        name, count = arm_cell(arm.arm), arm.reflections
        usable = [share(part, count) for part in (arm.searching_on, arm.restating, count - arm.naming)]
        mean = number(arm.words / count, ".1f")
        texts.append([name, number(count), number(arm.distinct), mean, *usable])
        kinds = [share(part, arm.places) for part in (arm.unsearched, arm.seen, arm.in_vain, arm.invented)]
        told = [share(part, arm.sighted) for part in (arm.locating, arm.sent_back)]
        places.append([name, number(arm.places), *kinds, *told])
        directed, solved = share(arm.directed, arm.retries), share(arm.solved, arm.retries)
        retries.append([name, number(arm.retries), directed, share(arm.followed, arm.directed), solved])
    if not texts:
        return []
    return [
        table(_TEXTS.split(" | "), texts, "The texts of each arm."),
        table(_PLACES.split(" | "), places, "The places that the texts name."),
        table(_RETRIES.split(" | "), retries, "What the actor did with the advice."),
    ]


def habits_table(rows: Sequence[Habit]) -> Table:
    """Return the objects with the most failures; arms without a guess are omitted."""
    arms = [arm for arm in rows[0].guesses if any(row.guesses[arm].total() for row in rows)]
    lines: list[Row] = [
        [row.thing, number(row.failures), _most_common(row.finds), *(_most_common(row.guesses[arm]) for arm in arms)]
        for row in rows[:_OBJECTS]
    ]
    header = ["object", "failures", "found in (tasks)", *arms]
    return table(header, lines, "Places of the objects with the most failures.")


def _finds(attempt: Trajectory, attempted: AttemptReading) -> Iterator[tuple[str, str]]:
    """Yield (thing, type of place) for each goal thing that an attempt took from its initial place."""
    goal, first_seen = attempted.goal, attempted.seen.first_seen
    for step in attempt.steps:
        thing = step.action.removeprefix("take ").partition(" from ")[0]
        if step.action.startswith("take ") and compact.type_of(thing) == goal.thing and thing in first_seen:
            yield goal.thing, compact.type_of(first_seen[thing])


def _most_common(kinds: Counter[str]) -> str:
    """Return `desk 4, shelf 2, bed 1`; equal counts by name."""
    ranked = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    return ", ".join(f"{name} {count}" for name, count in ranked[:_PLACE_TYPES]) or "-"


class AdviceChapter:
    """Chapter that compares the advice in ALFWorld with what the failures had shown."""

    def __init__(self, arms: Sequence[ReportedArm]) -> None:
        self._arms = arms
        self._telemetry = {arm.name: TelemetryCounter(arm.name) for arm in arms}
        self._habits = HabitCounter([arm.name for arm in arms])

    def add(self, facts: TaskFacts) -> None:
        """Count what the arms wrote about one task."""
        attempted: dict[int, AttemptReading] = {}

        def read(attempt: Trajectory) -> AttemptReading:
            if id(attempt) not in attempted:
                attempted[id(attempt)] = read_attempt(attempt)
            return attempted[id(attempt)]

        written: dict[str, list[tuple[ReflectionCase, Reading]]] = {arm.name: [] for arm in self._arms}
        for arm in self._arms:
            for stored in arm.stored_names:
                cases = reflection_cases(facts.seeds[stored])
                written[arm.name] += [(case, read_reflection(case, read(case.failure))) for case in cases]
            for case, reading in written[arm.name]:
                self._telemetry[arm.name].add(case, reading)
        attempts = {id(attempt): attempt for seed in facts.seeds.values() for attempt in seed.attempts.values()}
        successes = [attempt for attempt in attempts.values() if attempt.outcome is Outcome.SUCCESS]
        self._habits.add(written, [(attempt, read(attempt)) for attempt in successes])

    def chapters(self) -> Iterator[Chapter]:
        """Yield a chapter on the advice, and one on where it sends the actor."""
        if tables := telemetry_tables([counter.telemetry for counter in self._telemetry.values()]):
            yield chapter("What the advice was like", *tables)
        if habits := self._habits.habits:
            yield chapter("Where the arms send to, and where things were found", HABITS_NOTE, habits_table(habits))


_GUESS = re.compile(
    r"\b(?:may|might|maybe|perhaps|could|can|possibly|probably|likely|usually|often|typically|should|would|if|whether|"
    r"unless|until|hopefully|suspect|guess|expect|assume|think|believe|look|looking|search|check|try)\b"
)
"""Words of a clause that guesses or searches."""


class PlaceLeak:
    """Check whether advice says where a wanted thing lies although no attempt had seen it there, by the walkthrough.

    Only a statement about a single place counts: `take the mug from shelf 2`, not `look in shelf 2` or `the mug may be
    in shelf 2`, which any reflector may guess. A statement that is right by chance counts as well. The reader of advice
    decides what a statement is, so other words go unnoticed.
    """

    rule = (
        "Advice gives the place away if it says that a wanted thing is at one place, the walkthrough takes it there, "
        "and no attempt before it had seen it there. Guesses, such as ",
        code("look in shelf 2"),
        ", are not counted.",
    )

    def __init__(self, walkthrough: Callable[[Task], Sequence[str]]) -> None:
        self._walkthrough = walkthrough
        """Returns winning actions. Raises UnknownTask, MissingInput, EnvironmentFailure."""

    def given_away(self, advice: str, attempts: Sequence[Trajectory]) -> str:
        """Return where a thing lies, such as `mug 1 in shelf 2`, if only the advice says it; else "".

        Raises UnknownTask, MissingInput, EnvironmentFailure.
        """
        shown = [read_attempt(attempt) for attempt in attempts]
        stated = {
            (kind, place)
            for kind, place in _statements(advice, shown[-1])
            if not any(
                type_of(thing) == kind and seen == place
                for attempted in shown
                for thing, seen in attempted.seen.first_seen.items()
            )
        }
        if not stated:
            return ""
        things = read_solution(self._walkthrough(attempts[-1].task)).things
        return ", ".join(f"{thing} in {place}" for thing, place in things if (type_of(thing), place) in stated)


def _statements(advice: str, attempted: AttemptReading) -> Iterator[tuple[str, str]]:
    """Yield (type of thing, place) for each clause that says where a thing is, at a single place of the room."""
    for clause in clauses_of(advice):
        if _GUESS.search(clause):
            continue
        for kind, places in read_advice([clause], attempted.room, attempted.goal).sightings.items():
            if len(places) == 1:
                yield kind, places[0]
