"""Reader of household advice in plain text: where to look first, what to skip, where a thing is, where it goes.

The reader is tolerant and shallow. It splits the text into clauses, finds the places of this room in each, and infers
the clause's mood from its words. It ignores places that this room lacks, things that the task does not need, and
phrases without a place. It uses only the names of the room's places and the task sentence.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from retroformer.environments.alfworld.clauses import Mention, Mood, clauses_of, find_places, find_things, mood_of
from retroformer.environments.alfworld.compact import type_of
from retroformer.environments.alfworld.reading import APPLIANCES, Goal

_SEARCH = re.compile(r"\b(?:look|check|search|go|try|visit|open|start|begin|explore|inspect|head|walk|focus)\b")
_SIGHTING = re.compile(
    r"\b(?:is|are|was|were|be|saw|see|seen|found|find|spotted|noticed|holds?|contains?|has|had|take|took|grab|pick|picked|"
    r"get|lies|sits|located|remember)\b"
)
_PUTTING = re.compile(
    r"\b(?:put|bring|carry|deliver|drop)\b|"
    r"\b(?:place|move|return|leave|take) (?:it|them|both|the \w+(?: \d+)?|an? \w+) "
    r"(?:back |from .+ )?(?:in|on|to|at|into|onto)\b"
)
_PASSIVE = re.compile(r"\b(?:is|was|were|been) put\b")
_TRANSFORM = re.compile(
    r"(?<!\ba )(?<!\bthe )(?<!\bsome )"
    r"\b(?:clean|wash|rinse|heat|warm|microwave (?:it|them|the (?!microwave))|cool|chill|use|do it)\b"
)


@dataclass(frozen=True)
class PlaceAdvice:
    """Content of advice, as places of the room; all tuples are in text order."""

    first: tuple[str, ...] = ()
    """Places to search before any other."""
    skip: tuple[str, ...] = ()
    """Places to search last."""
    sightings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Type of thing -> places where the advice says it is."""
    targets: tuple[str, ...] = ()
    """Places to put the thing."""
    appliances: tuple[str, ...] = ()
    """Places to clean, heat or cool the thing."""


def read_advice(reflections: Sequence[str], places: Sequence[str], goal: Goal) -> PlaceAdvice:
    """Return the advice of a memory, given oldest reflection first; on conflicts the latest reflection wins.

    Only the latest reflection says where to look first: earlier suggestions were tried, and those trials failed.
    """
    readings = [_read(text, tuple(places), goal) for text in reversed(reflections)]
    if not readings:
        return PlaceAdvice()
    latest, *older = readings
    sightings = {kind: list(seen_at) for kind, seen_at in latest.sightings.items()}
    for reading in older:
        for kind, seen_at in reading.sightings.items():
            sightings.setdefault(kind, []).extend(place for place in seen_at if place not in latest.skip)
    named = {*latest.first, *(place for seen_at in latest.sightings.values() for place in seen_at)}
    skip = [place for reading in older for place in reading.skip if place not in named]
    return PlaceAdvice(
        first=latest.first,
        skip=once((*latest.skip, *skip)),
        sightings={kind: once(seen_at) for kind, seen_at in sightings.items()},
        targets=once(place for reading in readings for place in reading.targets),
        appliances=once(place for reading in readings for place in reading.appliances),
    )


@lru_cache(maxsize=1024)
def _read(text: str, room: tuple[str, ...], goal: Goal) -> PlaceAdvice:
    notes = _Notes(goal)
    for clause in clauses_of(text):
        notes.take(clause, find_places(clause, room))
    return notes.advice()


class _Notes:
    """Notes on what one text has said so far."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.wanted = tuple(filter(None, (goal.thing, goal.lamp)))
        self.search: dict[str, tuple[bool, bool]] = {}
        """Place -> (True to search it, True if the text named this place and not only its type)."""
        self.sightings: dict[str, dict[str, bool]] = {}
        """Type of thing -> place -> True if the text named this place and not only its type."""
        self.targets: list[str] = []
        self.appliances: list[str] = []

    def take(self, clause: str, mentions: list[Mention]) -> None:
        """Read one clause."""
        if not mentions:
            return
        mood = mood_of(clause)
        things = find_things(clause, self.wanted)
        wanted = [(kind, start) for kind, start in things if kind in self.wanted]
        elsewhere = bool(things) and not wanted
        for mention in mentions:
            if mood is Mood.AVOID:
                if not elsewhere:
                    self._search(mention, look=False)
            elif mood is Mood.OPEN:
                self._search(mention, look=True)
            elif not self._take_errand(clause, mention, elsewhere):
                self._take_search(clause, mention, mood, wanted, elsewhere)

    def advice(self) -> PlaceAdvice:
        """Return everything read so far."""
        skip = tuple(place for place, (look, _) in self.search.items() if not look)
        return PlaceAdvice(
            first=tuple(place for place, (look, _) in self.search.items() if look),
            skip=skip,
            sightings={
                kind: tuple(place for place, numbered in places.items() if numbered or place not in skip)
                for kind, places in self.sightings.items()
            },
            targets=once(self.targets),
            appliances=once(self.appliances),
        )

    def _take_errand(self, clause: str, mention: Mention, elsewhere: bool) -> bool:
        """Return True if the place is named for an action there with a thing in hand."""
        kind = type_of(mention.places[0])
        putting = _PUTTING.search(clause) is not None and not _PASSIVE.search(clause) and mention.before != "from"
        if _TRANSFORM.search(clause) and kind in APPLIANCES.values() and not (putting and kind == self.goal.target):
            if kind == self.goal.appliance:
                self.appliances += mention.places
            return True
        if putting and kind == self.goal.target and not elsewhere:
            self.targets += mention.places
        return putting

    def _take_search(
        self, clause: str, mention: Mention, mood: Mood, wanted: list[tuple[str, int]], elsewhere: bool
    ) -> None:
        searching, sighting = _SEARCH.search(clause), _SIGHTING.search(clause)
        if wanted and (sighting or not (searching or mood is Mood.REPORT)):
            near = [kind for kind, start in wanted if start < mention.start]
            places = self.sightings.setdefault(near[-1] if near else wanted[0][0], {})
            for place in mention.places:
                places[place] = mention.numbered or places.get(place, False)
            self._search(mention, look=None)
        elif mood is Mood.REPORT:
            self._search(mention, look=False)
        elif not elsewhere or (searching and not sighting):
            self._search(mention, look=True)

    def _search(self, mention: Mention, look: bool | None) -> None:
        """Note whether to search these places (None forgets them); a type does not override a numbered place."""
        for place in mention.places:
            _, numbered = self.search.get(place, (False, False))
            if mention.numbered or not numbered:
                self.search.pop(place, None)
                if look is not None:
                    self.search[place] = (look, mention.numbered)


def once(places: Iterable[str]) -> tuple[str, ...]:
    """Return the places without repetitions."""
    return tuple(dict.fromkeys(places))
