"""What reflectors learnt to write about failures in ALFWorld, and what the actor made of it: counts, arm by arm.

Read by the same shallow reader as the rule actor's (`retroformer.actors.advice`), so advice in words that it does not
understand counts as advice that names no place to look into.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from eval.lesson import FIRST_MOVES, Lesson, Reading, first_walks, read_lesson
from eval.table import share, table
from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.reading import read_goal, read_steps
from retroformer.records import Outcome, Trajectory

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


def measure(arm: str, lessons: Sequence[Lesson]) -> Telemetry:
    """The counts of one arm."""
    read = [(lesson, read_lesson(lesson)) for lesson in lessons]
    readings = [reading for _, reading in read]
    sighted = [reading for reading in readings if reading.seen_at]
    directed = [(lesson, reading) for lesson, reading in read if lesson.tried and reading.sent]
    return Telemetry(
        arm=arm,
        reflections=len(lessons),
        distinct=len({" ".join(lesson.text.split()) for lesson in lessons}),
        words=sum(len(lesson.text.split()) for lesson in lessons),
        naming=sum(bool(reading.named) for reading in readings),
        searching_on=sum(bool(reading.unsearched) for reading in readings),
        restating=sum(reading.restates for reading in readings),
        unsearched=sum(len(reading.unsearched) for reading in readings),
        seen=sum(len(reading.sent_back) for reading in readings),
        in_vain=sum(len(reading.in_vain) for reading in readings),
        invented=sum(len(reading.invented) for reading in readings),
        sighted=len(sighted),
        told=sum(bool(reading.told) for reading in sighted),
        sent_back=sum(bool(reading.sent_back) for reading in sighted),
        retries=sum(lesson.tried for lesson in lessons),
        directed=len(directed),
        followed=sum(_followed(lesson, reading) for lesson, reading in directed),
        solved=sum(lesson.solved for lesson in lessons),
    )


def habits(arms: Mapping[str, Sequence[Lesson]], attempts: Iterable[Trajectory]) -> list[Habit]:
    """For each goal object, where each arm guesses it to be, and where the successful ones of `attempts` found it.

    Most failures first, then by name. A guess is a place that the failed attempt had not looked into. A type of place
    counts once a reflection, and once a task for finds, so that many drawers do not outweigh one desk, nor many
    attempts one room.
    """
    failures: dict[str, set[Trajectory]] = {}
    guesses: dict[str, dict[str, Counter[str]]] = {}
    for arm, lessons in arms.items():
        for lesson in lessons:
            reading = read_lesson(lesson)
            failures.setdefault(reading.goal.thing, set()).add(lesson.failure)
            counts = guesses.setdefault(reading.goal.thing, {name: Counter() for name in arms})
            counts[arm].update({compact.type_of(place) for place in reading.unsearched})
    found = _finds(attempts)
    rows = [
        Habit(thing, len(failures[thing]), found.get(thing, Counter()), guesses[thing]) for thing in failures if thing
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


def _finds(attempts: Iterable[Trajectory]) -> dict[str, Counter[str]]:
    """Thing -> type of place -> tasks in which a successful attempt took such a thing from where it had always been."""
    finds: set[tuple[str, str, str]] = set()
    for attempt in attempts:
        if attempt.outcome is not Outcome.SUCCESS:
            continue
        goal, seen = read_goal(compact.read_opening(attempt.opening).task), read_steps(attempt.steps)
        for step in attempt.steps:
            thing = step.action.removeprefix("take ").partition(" from ")[0]
            if step.action.startswith("take ") and compact.type_of(thing) == goal.thing and thing in seen.first_seen:
                finds.add((goal.thing, compact.type_of(seen.first_seen[thing]), attempt.task.id))
    counts: dict[str, Counter[str]] = {}
    for thing, kind, _ in sorted(finds):
        counts.setdefault(thing, Counter())[kind] += 1
    return counts


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
