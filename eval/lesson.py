"""A reflection on an ALFWorld failure, held against what that failure had shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from eval.facts import SeedFacts
from retroformer.actors.advice import read_advice
from retroformer.actors.clauses import clauses_of, find_places
from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.reading import Experience, Goal, read_goal, read_steps
from retroformer.records import Outcome, Trajectory

FIRST_MOVES = 2
"""Within how many walks an actor that follows advice has reached a place of it."""

_PLACE_TYPES = (
    "armchair",
    "bathtubbasin",
    "bed",
    "cabinet",
    "cart",
    "coffeemachine",
    "coffeetable",
    "countertop",
    "desk",
    "diningtable",
    "drawer",
    "dresser",
    "fridge",
    "garbagecan",
    "handtowelholder",
    "laundryhamper",
    "microwave",
    "ottoman",
    "safe",
    "shelf",
    "sidetable",
    "sinkbasin",
    "sofa",
    "stoveburner",
    "toaster",
    "toilet",
    "toiletpaperhanger",
    "towelholder",
    "tvstand",
)
"""All that ALFWorld's rooms are furnished with."""
_HIGHEST_NUMBER = 99
"""No room has so many places of a type; what is invented beyond it is not counted."""
_ANYWHERE = tuple(f"{kind} {number}" for kind in _PLACE_TYPES for number in range(1, _HIGHEST_NUMBER + 1))


class Lesson(NamedTuple):
    """A failed attempt, what was written about it, and the attempt that read it."""

    failure: Trajectory
    text: str
    """Blank where the reflector had nothing to say."""
    retry: Trajectory | None = None
    """None where it was not made; an invalid one counts as not made."""
    given: tuple[str, ...] = ()
    """The advice that the failed attempt had itself been given."""
    trial: int = 0
    """The trial that failed."""

    @property
    def tried(self) -> bool:
        return self.retry is not None and self.retry.outcome is not Outcome.INVALID

    @property
    def solved(self) -> bool:
        """Whether the retry solved the task."""
        return self.retry is not None and self.retry.outcome is Outcome.SUCCESS


@dataclass(frozen=True)
class Reading:
    """What a reflection says. Places are in the order of the text, each once, and of the room unless said otherwise."""

    goal: Goal
    named: tuple[str, ...]
    """Whatever is said of them."""
    sent: tuple[str, ...]
    """Where to look, or where a thing that the task needs is said to be."""
    invented: tuple[str, ...]
    """Numbered places like those of `sent` that the room does not have."""
    told: tuple[str, ...]
    """Those of `sent` where a thing that the task needs is said to be, and where the failed attempt had seen it."""
    seen_at: tuple[str, ...]
    """Where the failed attempt had seen things that the task needs, before anybody moved them."""
    searched: tuple[str, ...]
    """What the failed attempt had looked into."""
    repeated: bool
    """The text is one that the failed attempt had been given."""

    @property
    def unsearched(self) -> tuple[str, ...]:
        """Sent to a place where nobody has looked."""
        return tuple(place for place in self.sent if place not in self.searched)

    @property
    def sent_back(self) -> tuple[str, ...]:
        """Sent to where a thing that the task needs was seen, whether or not the text says that it is there."""
        return tuple(place for place in self.sent if place in self.seen_at)

    @property
    def in_vain(self) -> tuple[str, ...]:
        """Sent to where the failed attempt had looked and seen nothing that the task needs."""
        return tuple(place for place in self.sent if place in self.searched and place not in self.seen_at)

    @property
    def restates(self) -> bool:
        """The failed plan again: the same text, or none but places searched in vain."""
        return self.repeated or (bool(self.sent) and self.in_vain == self.sent)


class Attempted(NamedTuple):
    """What an attempt showed of its room and its goal."""

    room: tuple[str, ...]
    """Places in the order of the room."""
    goal: Goal
    seen: Experience


def read_attempt(attempt: Trajectory) -> Attempted:
    """What this attempt showed; one that is none of ALFWorld's has no places and no goal."""
    sentence, places = compact.read_opening(attempt.opening)
    return Attempted(compact.room_order(attempt.task, places), read_goal(sentence), read_steps(attempt.steps))


def read_lesson(lesson: Lesson, attempted: Attempted | None = None) -> Reading:
    """What the reflection of this lesson says; `attempted` is what its failure showed, where that is known."""
    room, goal, seen = attempted or read_attempt(lesson.failure)
    needed = tuple(filter(None, (goal.thing, goal.lamp)))
    invented = _invented(lesson.text, room)
    advice = read_advice([lesson.text], (*room, *invented), goal)
    sightings = once(chain.from_iterable(advice.sightings.values()))
    sent = once((*sightings, *advice.first))
    return Reading(
        goal=goal,
        named=_named(lesson.text, room),
        sent=tuple(place for place in sent if place in room),
        invented=tuple(place for place in sent if place not in room),
        told=once(
            place for kind, found in advice.sightings.items() for place in found if place in _seen_at(seen, (kind,))
        ),
        seen_at=_seen_at(seen, needed),
        searched=tuple(seen.contents),
        repeated=bool(lesson.text.strip()) and lesson.text.split() in [text.split() for text in lesson.given],
    )


def first_walks(attempt: Trajectory) -> tuple[str, ...]:
    """Where the first FIRST_MOVES `go to` actions of an attempt led."""
    commands = (compact.command(step.action) for step in attempt.steps)
    walks = [action.removeprefix("go to ") for action in commands if action.startswith("go to ")]
    return tuple(walks[:FIRST_MOVES])


def once(places: Iterable[str]) -> tuple[str, ...]:
    """Without repetitions."""
    return tuple(dict.fromkeys(places))


def _named(text: str, room: tuple[str, ...]) -> tuple[str, ...]:
    mentions = chain.from_iterable(find_places(clause, room) for clause in clauses_of(text))
    return once(chain.from_iterable(mention.places for mention in mentions))


def _invented(text: str, room: Sequence[str]) -> tuple[str, ...]:
    """Places that the text names by type and number, and that the room lacks."""
    found = list[str]()
    for mention in chain.from_iterable(find_places(clause, _ANYWHERE) for clause in clauses_of(text)):
        by_number: dict[int, list[str]] = {}
        for place in mention.places if mention.numbered else ():
            by_number.setdefault(compact.number_of(place), []).append(place)
        # A nickname such as `table 2` stands for several types: it is real if any of them is, else one invention.
        found += [meanings[0] for meanings in by_number.values() if not set(meanings).intersection(room)]
    return once(found)


def _seen_at(seen: Experience, kinds: Sequence[str]) -> tuple[str, ...]:
    return once(place for thing, place in seen.first_seen.items() if compact.type_of(thing) in kinds)


def lessons_of(facts: SeedFacts) -> list[Lesson]:
    """All that this arm wrote about one task, about which failure, and what came of it."""
    return [
        Lesson(
            facts.attempts[trial - 1],
            stored.reflection.text,
            facts.attempts.get(trial),
            given=tuple(_earlier(facts, trial)),
            trial=trial - 1,
        )
        for trial, stored in facts.reflections.items()
    ]


def _earlier(facts: SeedFacts, trial: int) -> Iterable[str]:
    for number in range(1, trial):
        stored = facts.reflections.get(number)
        if stored is not None and stored.reflection.text.strip():
            yield stored.reflection.text
