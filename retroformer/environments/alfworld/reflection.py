"""Reflection on an ALFWorld failure, compared with what that failure had shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.clauses import clauses_of, find_places
from retroformer.environments.alfworld.reader import once, read_advice
from retroformer.environments.alfworld.reading import Goal, RoomKnowledge, read_goal, read_steps
from retroformer.environments.extras import SeedFacts
from retroformer.method.records import Outcome, Trajectory

FIRST_MOVES = 2
"""Number of walks within which an actor that follows advice has reached a place of it."""

_PLACE_TYPES = """
    armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer dresser
    fridge garbagecan handtowelholder laundryhamper microwave ottoman safe shelf sidetable sinkbasin sofa
    stoveburner toaster toilet toiletpaperhanger towelholder tvstand
"""
"""Types of places in ALFWorld's rooms."""
_HIGHEST_NUMBER = 99
"""Highest number considered: no room has so many places of a type; higher invented numbers are not counted."""
_ANYWHERE = tuple(f"{kind} {number}" for kind in _PLACE_TYPES.split() for number in range(1, _HIGHEST_NUMBER + 1))


class ReflectionCase(NamedTuple):
    """Failed attempt, the reflection on it, and the attempt that read the reflection."""

    failure: Trajectory
    text: str
    """Reflection; blank if the reflector wrote nothing."""
    retry: Trajectory | None = None
    """Next attempt; None if there was none. An invalid attempt counts as none."""
    given: tuple[str, ...] = ()
    """Advice that the failed attempt had read."""
    trial: int = 0
    """Index of the failed trial."""

    @property
    def tried(self) -> bool:
        return self.retry is not None and self.retry.outcome is not Outcome.INVALID

    @property
    def solved(self) -> bool:
        """True if the retry solved the task."""
        return self.retry is not None and self.retry.outcome is Outcome.SUCCESS


@dataclass(frozen=True)
class Reading:
    """Content of a reflection. Places are in text order, each once, and in the room unless stated otherwise."""

    goal: Goal
    named: tuple[str, ...]
    """All places named."""
    sent: tuple[str, ...]
    """Places to search, or where the text says that a needed thing is."""
    invented: tuple[str, ...]
    """Numbered places like those of `sent` that the room lacks."""
    located: tuple[str, ...]
    """Those of `sent` where the text says that a needed thing is and the failed attempt had seen it."""
    seen_at: tuple[str, ...]
    """Initial places of the needed things that the failed attempt had seen."""
    searched: tuple[str, ...]
    """Places that the failed attempt had looked into."""
    repeated: bool
    """True if the failed attempt had already read this text."""

    @property
    def unsearched(self) -> tuple[str, ...]:
        """Those of `sent` that the failed attempt had not looked into."""
        return tuple(place for place in self.sent if place not in self.searched)

    @property
    def sent_back(self) -> tuple[str, ...]:
        """Those of `sent` where a needed thing was seen, even if the text does not say that it is there."""
        return tuple(place for place in self.sent if place in self.seen_at)

    @property
    def in_vain(self) -> tuple[str, ...]:
        """Those of `sent` where the failed attempt had looked and seen no needed thing."""
        return tuple(place for place in self.sent if place in self.searched and place not in self.seen_at)

    @property
    def restates(self) -> bool:
        """True if it repeats the failed plan: the same text, or only places searched in vain."""
        return self.repeated or (bool(self.sent) and self.in_vain == self.sent)


class AttemptReading(NamedTuple):
    """Content of an attempt: its room, its goal and what it showed."""

    room: tuple[str, ...]
    """Places in room order."""
    goal: Goal
    seen: RoomKnowledge


def read_attempt(attempt: Trajectory) -> AttemptReading:
    """Return what this attempt showed; an attempt outside ALFWorld has no places and no goal."""
    sentence, places = compact.read_opening(attempt.opening)
    return AttemptReading(compact.room_order(attempt.task, places), read_goal(sentence), read_steps(attempt.steps))


def read_reflection(case: ReflectionCase, attempted: AttemptReading | None = None) -> Reading:
    """Return what the reflection of this case says; `attempted` is what its failure showed, if already read."""
    room, goal, seen = attempted or read_attempt(case.failure)
    mentions = chain.from_iterable(find_places(clause, room) for clause in clauses_of(case.text))
    needed = tuple(filter(None, (goal.thing, goal.lamp)))
    invented = _invented(case.text, room)
    advice = read_advice([case.text], (*room, *invented), goal)
    sightings = once(chain.from_iterable(advice.sightings.values()))
    sent = once((*sightings, *advice.first))
    return Reading(
        goal=goal,
        named=once(chain.from_iterable(mention.places for mention in mentions)),
        sent=tuple(place for place in sent if place in room),
        invented=tuple(place for place in sent if place not in room),
        located=once(
            place for kind, spots in advice.sightings.items() for place in spots if place in _seen_at(seen, (kind,))
        ),
        seen_at=_seen_at(seen, needed),
        searched=tuple(seen.contents),
        repeated=bool(case.text.strip()) and case.text.split() in [text.split() for text in case.given],
    )


def first_walks(attempt: Trajectory) -> tuple[str, ...]:
    """Return the destinations of the first FIRST_MOVES `go to` actions of an attempt."""
    commands = (compact.command(step.action) for step in attempt.steps)
    walks = [action.removeprefix("go to ") for action in commands if action.startswith("go to ")]
    return tuple(walks[:FIRST_MOVES])


def _invented(text: str, room: Sequence[str]) -> tuple[str, ...]:
    """Return the places that the text names by type and number and that the room lacks."""
    invented = list[str]()
    for mention in chain.from_iterable(find_places(clause, _ANYWHERE) for clause in clauses_of(text)):
        by_number: dict[int, list[str]] = {}
        for place in mention.places if mention.numbered else ():
            by_number.setdefault(compact.number_of(place), []).append(place)
        # A nickname such as `table 2` stands for several types: it is real if any of them is, else it is one invention.
        invented += [meanings[0] for meanings in by_number.values() if not set(meanings).intersection(room)]
    return once(invented)


def _seen_at(seen: RoomKnowledge, kinds: Sequence[str]) -> tuple[str, ...]:
    return once(place for thing, place in seen.first_seen.items() if compact.type_of(thing) in kinds)


def reflection_cases(facts: SeedFacts) -> list[ReflectionCase]:
    """Return all that this arm wrote about one task, each with its failure and the retry."""
    return [
        ReflectionCase(
            facts.attempts[trial - 1],
            advice.text,
            facts.attempts.get(trial),
            given=tuple(
                facts.reflections[number].text
                for number in range(trial)
                if number in facts.reflections and facts.reflections[number].text.strip()
            ),
            trial=trial - 1,
        )
        for trial, advice in facts.reflections.items()
        if trial  # Advice before the first attempt is about no failure.
    ]
