"""Advice for a household, read as plain text: where to look first, what to skip, where a thing is, where it goes.

The reader is tolerant and shallow. It cuts the text into clauses, finds the places of this room in each, and takes the
clause's mood from its words. Places that this room lacks, things that the task is not about, and phrases without a
place mean nothing to it. It knows the room's names and the task's sentence, and nothing else of the game.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from retroformer.actors.clauses import Mention, Mood, clauses_of, find_places, find_things, mood_of
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
_TAKING = re.compile(r"\b(?:take|grab|pick|get)\b")
_DEED = re.compile(
    r"(?<!\ba )(?<!\bthe )(?<!\bsome )"
    r"\b(?:clean|wash|rinse|heat|warm|microwave (?:it|them|the (?!microwave))|cool|chill|use|do it)\b"
)


@dataclass(frozen=True)
class Advice:
    """What advice asks for, in places of the room; all tuples are in the order of the text."""

    first: tuple[str, ...] = ()
    """Look here before anywhere else."""
    skip: tuple[str, ...] = ()
    """Look here last."""
    sightings: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Type of thing -> places where it was said to be."""
    targets: tuple[str, ...] = ()
    """Put the thing here."""
    appliances: tuple[str, ...] = ()
    """Clean, heat or cool here."""


def read_advice(reflections: Sequence[str], places: Sequence[str], goal: Goal) -> Advice:
    """The advice of a memory, oldest reflection first; where reflections disagree, the latest is right.

    Where to look first is taken from the latest alone: what the older ones asked for was tried, and that trial failed.
    """
    readings = [_read(text, tuple(places), goal) for text in reversed(reflections)]
    if not readings:
        return Advice()
    latest, *older = readings
    sightings = {kind: list(found) for kind, found in latest.sightings.items()}
    for reading in older:
        for kind, found in reading.sightings.items():
            sightings.setdefault(kind, []).extend(place for place in found if place not in latest.skip)
    named = {*latest.first, *(place for found in latest.sightings.values() for place in found)}
    skip = [place for reading in older for place in reading.skip if place not in named]
    return Advice(
        first=latest.first,
        skip=_once((*latest.skip, *skip)),
        sightings={kind: _once(found) for kind, found in sightings.items()},
        targets=_once(place for reading in readings for place in reading.targets),
        appliances=_once(place for reading in readings for place in reading.appliances),
    )


@lru_cache(maxsize=1024)
def _read(text: str, room: tuple[str, ...], goal: Goal) -> Advice:
    notes = _Notes(goal)
    for clause in clauses_of(text):
        notes.take(clause, find_places(clause, room))
    return notes.advice()


class _Notes:
    """What one text has said so far."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.wanted = tuple(filter(None, (goal.thing, goal.lamp)))
        self.search: dict[str, tuple[bool, bool]] = {}
        """Place -> (look there, said of this very place and not of its type)."""
        self.sightings: dict[str, dict[str, bool]] = {}
        """Type of thing -> place -> said of this very place."""
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

    def advice(self) -> Advice:
        """All that was read."""
        skip = tuple(place for place, (look, _) in self.search.items() if not look)
        return Advice(
            first=tuple(place for place, (look, _) in self.search.items() if look),
            skip=skip,
            sightings={
                kind: tuple(place for place, numbered in places.items() if numbered or place not in skip)
                for kind, places in self.sightings.items()
            },
            targets=_once(self.targets),
            appliances=_once(self.appliances),
        )

    def _take_errand(self, clause: str, mention: Mention, elsewhere: bool) -> bool:
        """Whether the place is named for what is done there with a thing in hand."""
        kind = type_of(mention.places[0])
        putting = _PUTTING.search(clause) is not None and not _PASSIVE.search(clause) and mention.before != "from"
        if _DEED.search(clause) and kind in APPLIANCES.values() and not (putting and kind == self.goal.target):
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
        """Note where to look or not (None: forget it), unless this very place was spoken of and now its type is."""
        for place in mention.places:
            _, numbered = self.search.get(place, (False, False))
            if mention.numbered or not numbered:
                self.search.pop(place, None)
                if look is not None:
                    self.search[place] = (look, mention.numbered)


def _once(places: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(places))
