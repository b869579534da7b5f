"""Reader of household advice in plain text: where to look first, what to skip, where a thing is, where it goes.

The reader is tolerant and shallow. It splits the text into clauses, finds the places of this room in each, and infers
the clause's mood from its words, by word lists without a grammar. It ignores places that this room lacks, things that
the task does not need, and phrases without a place. It uses only the names of the room's places and the task sentence.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from retroformer.environments.alfworld.attempt_reader import APPLIANCES, Goal
from retroformer.environments.alfworld.compact import number_of, type_of


class Mood(Enum):
    """Attitude of a clause to the places it names."""

    AVOID = auto()
    """Negative: do not search X, X is empty."""
    OPEN = auto()
    """Still to do: X was not searched, I should have checked X."""
    REPORT = auto()
    """Done: I looked in X."""
    PLAIN = auto()


class Mention(NamedTuple):
    """Mention of one or more places of the room at one spot of a clause."""

    places: tuple[str, ...]
    numbered: bool
    """True for `drawer 2`, false for `the drawers`."""
    start: int
    before: str
    """Word before the mention, such as `from`."""


_COMPOUND = re.compile(
    r"\b(?:arm chair|bath tub basin|bathtub basin|bath tub|coffee machine|coffee table|counter top|dining table|"
    r"foot stool|garbage can|hand towel holder|hand towel|laundry hamper|side table|sink basin|stove burner|"
    r"toilet paper hanger|toilet paper|towel holder|tv stand|alarm clock|baseball bat|basket ball|butter knife|"
    r"cell phone|credit card|desk lamp|dish sponge|floor lamp|glass bottle|key chain|news paper|paper towel|"
    r"pepper shaker|remote control|salt shaker|scrub brush|soap bar|soap bottle|spray bottle|teddy bear|tennis racket|"
    r"tissue box|watering can|wine bottle)"
)
"""Names that people write as two words and ALFWorld as one."""
_NICKNAMES = {
    "sink": ("sinkbasin",),
    "counter": ("countertop",),
    "bathtub": ("bathtubbasin",),
    "burner": ("stoveburner",),
    "stove": ("stoveburner",),
    "trash": ("garbagecan",),
    "bin": ("garbagecan",),
    "couch": ("sofa",),
    "table": ("diningtable", "coffeetable", "sidetable"),
}
_THINGS = (
    "alarmclock|apple|baseballbat|basketball|book|boots|bottle|bowl|box|bread|butterknife|candle|cd|cellphone|cloth|"
    "creditcard|cup|desklamp|dishsponge|egg|floorlamp|fork|glassbottle|handtowel|kettle|keychain|knife|ladle|laptop|"
    "lettuce|mug|newspaper|pan|papertowel|papertowelroll|pen|pencil|peppershaker|pillow|plate|plunger|pot|potato|"
    "remotecontrol|saltshaker|scrubbrush|soapbar|soapbottle|spatula|spoon|spraybottle|statue|teddybear|tennisracket|"
    "tissuebox|toiletpaper|toiletpaperroll|tomato|towel|vase|watch|wateringcan|winebottle"
)
"""Things that ALFWorld lets the agent carry or switch on."""

_VERBS = (
    "look|check|search|go|try|visit|open|start|explore|inspect|examine|clean|wash|rinse|heat|warm|cool|chill|put|place|"
    "move|bring|deliver|carry|return|drop|skip|avoid|ignore|use|turn|do not|never|i|you|there|it"
)
_LOOK = r"look|check|search|go|try|visit|open|explore|inspect|examine"
_LOOKED = r"looked|checked|searched|gone|went|tried|visited|opened|explored|inspected|examined"

_DASH = re.compile(r"[\u2014;]|(?<!\d)\s+[-\u2013]\s+|\s+[-\u2013]\s+(?!\d)")
_FULL_STOP = re.compile(r"[.!?;\n]+")
_JOINT = re.compile(
    r"\b(?:but|however|so|because|since|although|though|while|whereas)\b|"
    rf"(?:,\s*|\s)(?:and then|then|and)\s+(?=(?:{_VERBS})\b)|[,:]\s*(?=(?:{_VERBS}|not)\b)|"
    r"(?=\b(?:instead of|rather than|except)\b)"
)
_POSITIVE_NOT = re.compile(
    r"\b(?:do not|never|not to) (?:forget|miss|overlook|neglect|hesitate)(?: to)?\b|\bnot only\b|\bwhy not\b"
)
_CONDITION = re.compile(r"\s*(?:and |then )?(?:if|when|once|after|before|in case)\b")
_OPEN_WORDS = re.compile(
    rf"\bnot yet\b|\b(?:did|have|has|had|was|were|are|is) (?:not|never) (?:yet )?(?:been )?(?:{_LOOK}|{_LOOKED})\b|"
    rf"\bnever (?:{_LOOKED})\b|\bun(?:searched|visited|explored|checked|opened)\b|\bfailed to (?:{_LOOK})\b|"
    rf"\b(?:should|could|must|need to|needs to|ought to) (?:have |be |have been )?(?:{_LOOKED})\b|"
    rf"\bto be (?:{_LOOKED})\b"
)
_AVOID_WORDS = re.compile(
    r"\b(?:not|never|no|none|nothing|avoid|skip|ignore|already|empty|wasted|wasting|useless|fruitless|in vain|wrong|"
    r"ruled out|stop|stay away|stay out|keep away|forget|instead of|rather than|except|failed|"
    r"without (?:success|luck|finding|result))\b"
)
_REPORT_WORDS = re.compile(rf"\b(?:{_LOOKED})\b")


def clauses_of(text: str) -> list[str]:
    """Return the text as clauses, cut where the mood may change; lower case, with spellings normalised."""
    even = _DASH.sub(". ", text.lower().replace("\u2019", "'").replace("n't", " not"))
    even = " ".join(even.replace("\u2013", "-").split(" "))
    even = _COMPOUND.sub(lambda compound: compound[0].replace(" ", ""), even)
    even = _POSITIVE_NOT.sub(" ", even)
    return [clause for part in _FULL_STOP.split(even) for clause in _JOINT.split(part) if clause.strip()]


def _mood_of(clause: str) -> Mood:
    """Return the mood of a clause: the first match among condition, to do, avoid, report."""
    if _CONDITION.match(clause):
        return Mood.PLAIN
    if _OPEN_WORDS.search(clause):
        return Mood.OPEN
    if _AVOID_WORDS.search(clause):
        return Mood.AVOID
    return Mood.REPORT if _REPORT_WORDS.search(clause) else Mood.PLAIN


def find_places(clause: str, room: tuple[str, ...]) -> list[Mention]:
    """Return the places of this room that the clause names, in text order; a range gives its places that exist."""
    places_of_type = _places_of_type(room)
    kinds_of, pattern = _type_pattern(tuple(sorted(places_of_type)))
    mentions = []
    for match in pattern.finditer(clause):
        kinds, spans = kinds_of[match["name"]], _spans(match["numbers"] or "")
        named = sorted(place for kind in kinds for place in places_of_type[kind])
        places = tuple(
            place for _, number, place in named if not spans or any(low <= number <= high for low, high in spans)
        )
        words = re.sub(r"\b(?:the|a|an|any|all|every|each)\b", " ", clause[: match.start()]).split()
        mentions.append(Mention(places, bool(spans), match.start(), words[-1] if words else ""))
    return [mention for mention in mentions if mention.places]


def _find_things(clause: str, wanted: Sequence[str]) -> list[tuple[str, int]]:
    """Return (type, position) of each thing that the clause names, `wanted` or known to ALFWorld."""
    pattern = re.compile(rf"\b({'|'.join([*wanted, _THINGS])})(?:e?s)?\b")
    return [(match[1], match.start()) for match in pattern.finditer(clause)]


@lru_cache(maxsize=256)
def _places_of_type(room: tuple[str, ...]) -> dict[str, list[tuple[int, int, str]]]:
    """Return type of place -> (position in the room, number, place) for each place of that type."""
    places: dict[str, list[tuple[int, int, str]]] = {}
    for position, place in enumerate(room):
        places.setdefault(type_of(place), []).append((position, number_of(place), place))
    return places


@lru_cache(maxsize=1024)
def _type_pattern(types: tuple[str, ...]) -> tuple[dict[str, frozenset[str]], re.Pattern[str]]:
    """Return the spellings of these types of place, and the pattern of a spelling with its numbers."""
    spellings = {name: frozenset([name]) for name in types}
    for nickname, kinds in _NICKNAMES.items():
        spellings.setdefault(nickname, frozenset(types).intersection(kinds))
    kinds_of = {form: kinds for name, kinds in spellings.items() for form in (name, plural(name))}
    names = "|".join(sorted(kinds_of, key=len, reverse=True))
    span = r"\d+(?:\s*(?:-|to|through)\s*\d+)?"
    # In "drawer 1 and 2 mugs" the 2 counts mugs.
    counts = rf"(?!\d|\s*(?:steps?|times?|more|{_THINGS})(?:e?s)?\b)"
    numbers = rf"(?P<numbers>{span}(?:\s*(?:,\s*and|,\s*or|,|and|or|&|/)\s*{span}{counts})*)"
    return kinds_of, re.compile(rf"\b(?P<name>{names})\b(?:\s*(?:#|no\.|numbers?\b)?\s*{numbers})?")


def plural(kind: str) -> str:
    """Return the plural: `shelves` for `shelf`."""
    return f"{kind[:-1]}ves" if kind.endswith("f") else f"{kind}es" if kind.endswith(("s", "x", "ch")) else f"{kind}s"


def _spans(numbers: str) -> list[tuple[int, int]]:
    spans = re.finditer(r"(\d+)(?:\s*(?:-|to|through)\s*(\d+))?", numbers)
    # Python refuses to parse numbers with thousands of digits; no room needs more than nine.
    return [(int(span[1][:9]), int((span[2] or span[1])[:9])) for span in spans]


_SEARCH_WORDS = re.compile(r"\b(?:look|check|search|go|try|visit|open|start|begin|explore|inspect|head|walk|focus)\b")
_SIGHTING_WORDS = re.compile(
    r"\b(?:is|are|was|were|be|saw|see|seen|found|find|spotted|noticed|holds?|contains?|has|had|take|took|grab|pick|picked|"
    r"get|lies|sits|located|remember)\b"
)
_PUT_WORDS = re.compile(
    r"\b(?:put|bring|carry|deliver|drop)\b|"
    r"\b(?:place|move|return|leave|take) (?:it|them|both|the \w+(?: \d+)?|an? \w+) "
    r"(?:back |from .+ )?(?:in|on|to|at|into|onto)\b"
)
_PASSIVE_PUT = re.compile(r"\b(?:is|was|were|been) put\b")
_TRANSFORM_WORDS = re.compile(
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
        notes.read(clause, find_places(clause, room))
    return notes.advice()


class _Notes:
    """Notes on what one text has said so far."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.wanted = tuple(goal.counts)
        self.search: dict[str, tuple[bool, bool]] = {}
        """Place -> (True to search it, True if the text named this place and not only its type)."""
        self.sightings: dict[str, dict[str, bool]] = {}
        """Type of thing -> place -> True if the text named this place and not only its type."""
        self.targets: list[str] = []
        self.appliances: list[str] = []

    def read(self, clause: str, mentions: list[Mention]) -> None:
        """Read one clause."""
        if not mentions:
            return
        mood = _mood_of(clause)
        things = _find_things(clause, self.wanted)
        wanted = [(kind, start) for kind, start in things if kind in self.wanted]
        elsewhere = bool(things) and not wanted
        for mention in mentions:
            if mood is Mood.AVOID:
                if not elsewhere:
                    self._search(mention, look=False)
            elif mood is Mood.OPEN:
                self._search(mention, look=True)
            elif not self._note_use(clause, mention, elsewhere):
                self._note_search(clause, mention, mood, wanted, elsewhere)

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

    def _note_use(self, clause: str, mention: Mention, elsewhere: bool) -> bool:
        """Return True if the place is named for an action there with a thing in hand."""
        kind = type_of(mention.places[0])
        putting = _PUT_WORDS.search(clause) is not None and not _PASSIVE_PUT.search(clause) and mention.before != "from"
        if (
            _TRANSFORM_WORDS.search(clause)
            and kind in APPLIANCES.values()
            and not (putting and kind == self.goal.target)
        ):
            if kind == self.goal.appliance:
                self.appliances += mention.places
            return True
        if putting and kind == self.goal.target and not elsewhere:
            self.targets += mention.places
        return putting

    def _note_search(
        self, clause: str, mention: Mention, mood: Mood, wanted: list[tuple[str, int]], elsewhere: bool
    ) -> None:
        searching, sighting = _SEARCH_WORDS.search(clause), _SIGHTING_WORDS.search(clause)
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
