"""What reflectors learnt to write about failures in ALFWorld, and what the actor made of it: counts, arm by arm.

Read by the same shallow reader as the rule actor's (`retroformer.actors.advice`), so advice in words that it does not
understand counts as advice that names no place to look into.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from eval.lesson import FIRST_MOVES, Attempted, Lesson, Reading, first_walks
from eval.table import share, table
from retroformer.environments.alfworld import compact
from retroformer.records import Trajectory

_OBJECTS = 6
"""Goal objects that are shown, those of most failures first."""
_PLACE_TYPES = 3
"""Types of place that are shown for each."""


class Telemetry(NamedTuple):
    """One arm's reflections, counted."""

    arm: str
    reflections: int
    distinct: int
    """Different texts, spaces evened out."""
    words: int
    """In all reflections."""
    naming: int
    """Reflections that name a place of the room; the others say nothing usable."""
    searching_on: int
    """Reflections that send to a place not looked into by the failed attempt."""
    restating: int
    """Reflections that send to none but places searched in vain, or repeat the text that the failed attempt had."""
    unsearched: int
    """Places to look into, over all reflections, that the failed attempt had not looked into."""
    seen: int
    """... where it had seen a thing that the task needs."""
    in_vain: int
    """... where it had looked, and seen no such thing."""
    invented: int
    """... that the room does not have."""
    sighted: int
    """Failures that saw a thing that the task needs."""
    told: int
    """Of these, reflections that say where it was."""
    sent_back: int
    """Of these, reflections that send there in whatever words."""
    retries: int
    directed: int
    """Retries whose advice sends to a place of the room."""
    followed: int
    """Of these, retries that walked to such a place in their first moves."""
    solved: int
    """Retries that solved the task."""

    @property
    def places(self) -> int:
        """All places to look into."""
        return self.unsearched + self.seen + self.in_vain + self.invented


class Habit(NamedTuple):
    """Where an object is looked for, and where it is."""

    thing: str
    failures: int
    """Failed attempts, each counted once for all arms, at tasks that ask for it."""
    found: Counter[str]
    """Type of place -> rooms where a successful attempt picked the thing up at one."""
    guesses: Mapping[str, Counter[str]]
    """Arm -> type of place -> reflections that send to an unsearched one."""


class TelemetryCounter:
    """Counts the reflections of one arm, one at a time."""

    def __init__(self, arm: str) -> None:
        self._arm = arm
        self._counts: Counter[str] = Counter()
        self._texts = array("q")
        """A hash of each text: texts themselves would not fit into memory."""

    def add(self, lesson: Lesson, reading: Reading) -> None:
        """Count one reflection."""
        words = lesson.text.split()
        self._texts.frombytes(blake2b(" ".join(words).encode(errors="surrogatepass"), digest_size=8).digest())
        directed = lesson.tried and bool(reading.sent)
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
            told=bool(reading.seen_at and reading.told),
            sent_back=bool(reading.seen_at and reading.sent_back),
            retries=lesson.tried,
            directed=directed,
            followed=directed and _followed(lesson, reading),
            solved=lesson.solved,
        )

    @property
    def telemetry(self) -> Telemetry:
        """The counts so far."""
        counted = {name: self._counts[name] for name in Telemetry._fields if name not in ("arm", "distinct")}
        return Telemetry(arm=self._arm, distinct=len(np.unique(np.array(self._texts))), **counted)


class HabitCounter:
    """For each goal object, counts where each arm guesses it to be, and where successful attempts found it.

    A guess is a place that the failed attempt had not looked into. A type of place counts once a reflection, and once a
    task for finds, so that many drawers do not outweigh one desk, nor many attempts one room.
    """

    def __init__(self, arms: Sequence[str]) -> None:
        self._arms = arms
        self._failures: Counter[str] = Counter()
        self._guesses: dict[str, dict[str, Counter[str]]] = {}
        self._finds: dict[str, Counter[str]] = {}

    def add(
        self,
        lessons: Mapping[str, Sequence[tuple[Lesson, Reading]]],
        successes: Iterable[tuple[Trajectory, Attempted]],
    ) -> None:
        """Count what the arms wrote about one task, and its successful attempts."""
        failures: dict[str, set[Trajectory]] = {}
        for arm, read in lessons.items():
            for lesson, reading in read:
                thing = reading.goal.thing
                failures.setdefault(thing, set()).add(lesson.failure)
                guesses = self._guesses.setdefault(thing, {name: Counter() for name in self._arms})
                guesses[arm].update({compact.type_of(place) for place in reading.unsearched})
        for thing, failed in failures.items():
            self._failures[thing] += len(failed)
        found = {find for attempt, attempted in successes for find in _finds(attempt, attempted)}
        for thing, kind in found:
            self._finds.setdefault(thing, Counter())[kind] += 1

    @property
    def habits(self) -> list[Habit]:
        """The counts so far: most failures first, then by name."""
        rows = [
            Habit(thing, failures, self._finds.get(thing, Counter()), self._guesses[thing])
            for thing, failures in self._failures.items()
            if thing
        ]
        return sorted(rows, key=lambda habit: (-habit.failures, habit.thing))


def render_telemetry(arms: Sequence[Telemetry]) -> str:
    """Markdown tables of what the texts are, where they send to, and what the actor did; silent arms are left out."""
    writing = [arm for arm in arms if arm.words]
    if not writing:
        return "No arm wrote anything."
    return "\n\n".join((_texts(writing), _places(writing), _retries(writing)))


def render_habits(rows: Sequence[Habit]) -> str:
    """A table in Markdown of the objects of most failures; empty where there is none. Arms without a guess stay out."""
    arms = [arm for arm in (rows[0].guesses if rows else ()) if any(row.guesses[arm].total() for row in rows)]
    header = ["object", "failures", "found in (tasks)", *arms]
    lines = [
        [row.thing, str(row.failures), _most_common(row.found), *(_most_common(row.guesses[arm]) for arm in arms)]
        for row in rows[:_OBJECTS]
    ]
    return (
        "Types of place where successful attempts picked the object up, next to those where each arm sends to look for "
        "it and nobody had looked, with the number of its reflections that do.\n\n" + table(header, lines)
        if lines
        else ""
    )


def _followed(lesson: Lesson, reading: Reading) -> bool:
    return lesson.retry is not None and not set(first_walks(lesson.retry)).isdisjoint(reading.sent)


def _finds(attempt: Trajectory, attempted: Attempted) -> Iterator[tuple[str, str]]:
    """(thing, type of place) for each thing of the goal that an attempt took from where it had always been."""
    goal, first_seen = attempted.goal, attempted.seen.first_seen
    for step in attempt.steps:
        thing = step.action.removeprefix("take ").partition(" from ")[0]
        if step.action.startswith("take ") and compact.type_of(thing) == goal.thing and thing in first_seen:
            yield goal.thing, compact.type_of(first_seen[thing])


def _texts(arms: Sequence[Telemetry]) -> str:
    header = [
        "arm",
        "reflections",
        "distinct",
        "mean words",
        "send to a place not yet searched",
        "restate the failed plan",
        "say nothing usable (no place of the room)",
    ]
    rows = [
        [
            arm.arm,
            str(arm.reflections),
            str(arm.distinct),
            f"{arm.words / arm.reflections:.1f}",
            *(
                share(count, arm.reflections)
                for count in (arm.searching_on, arm.restating, arm.reflections - arm.naming)
            ),
        ]
        for arm in arms
    ]
    return table(header, rows)


def _places(arms: Sequence[Telemetry]) -> str:
    header = [
        "arm",
        "places to look into",
        "not yet searched",
        "the thing was seen there",
        "searched in vain",
        "not in this room",
        "where the failure saw the thing: say where",
        "send there",
    ]
    rows = [
        [
            arm.arm,
            str(arm.places),
            *(share(count, arm.places) for count in (arm.unsearched, arm.seen, arm.in_vain, arm.invented)),
            *(share(count, arm.sighted) for count in (arm.told, arm.sent_back)),
        ]
        for arm in arms
    ]
    return table(header, rows)


def _retries(arms: Sequence[Telemetry]) -> str:
    header = [
        "arm",
        "retries",
        "sent to a place of the room",
        f"went to one in the first {FIRST_MOVES} moves",
        "solved",
    ]
    rows = [
        [
            arm.arm,
            str(arm.retries),
            share(arm.directed, arm.retries),
            share(arm.followed, arm.directed),
            share(arm.solved, arm.retries),
        ]
        for arm in arms
    ]
    return table(header, rows)


def _most_common(kinds: Counter[str]) -> str:
    """`desk 4, shelf 2, bed 1`; equal counts by name."""
    ranked = sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0]))
    return ", ".join(f"{name} {count}" for name, count in ranked[:_PLACE_TYPES]) or "-"
