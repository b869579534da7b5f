"""Splitting of English advice into clauses: the places and things each names, and its mood. Word lists, no grammar."""

import re
from collections.abc import Sequence
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

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
_SEARCH = r"look|check|search|go|try|visit|open|explore|inspect|examine"
_SEARCHED = r"looked|checked|searched|gone|went|tried|visited|opened|explored|inspected|examined"

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
_TO_DO = re.compile(
    rf"\bnot yet\b|\b(?:did|have|has|had|was|were|are|is) (?:not|never) (?:yet )?(?:been )?(?:{_SEARCH}|{_SEARCHED})\b|"
    rf"\bnever (?:{_SEARCHED})\b|\bun(?:searched|visited|explored|checked|opened)\b|\bfailed to (?:{_SEARCH})\b|"
    rf"\b(?:should|could|must|need to|needs to|ought to) (?:have |be |have been )?(?:{_SEARCHED})\b|"
    rf"\bto be (?:{_SEARCHED})\b"
)
_NOT = re.compile(
    r"\b(?:not|never|no|none|nothing|avoid|skip|ignore|already|empty|wasted|wasting|useless|fruitless|in vain|wrong|"
    r"ruled out|stop|stay away|stay out|keep away|forget|instead of|rather than|except|failed|"
    r"without (?:success|luck|finding|result))\b"
)
_DONE = re.compile(rf"\b(?:{_SEARCHED})\b")


def clauses_of(text: str) -> list[str]:
    """Return the text as clauses, cut where the mood may change; lower case, with spellings normalised."""
    even = _DASH.sub(". ", text.lower().replace("\u2019", "'").replace("n't", " not"))
    even = " ".join(even.replace("\u2013", "-").split(" "))
    even = _COMPOUND.sub(lambda compound: compound[0].replace(" ", ""), even)
    even = _POSITIVE_NOT.sub(" ", even)
    return [clause for part in _FULL_STOP.split(even) for clause in _JOINT.split(part) if clause.strip()]


def mood_of(clause: str) -> Mood:
    """Return the mood of a clause: the first match among condition, to do, avoid, report."""
    if _CONDITION.match(clause):
        return Mood.PLAIN
    if _TO_DO.search(clause):
        return Mood.OPEN
    if _NOT.search(clause):
        return Mood.AVOID
    return Mood.REPORT if _DONE.search(clause) else Mood.PLAIN


def find_places(clause: str, room: tuple[str, ...]) -> list[Mention]:
    """Return the places of this room that the clause names, in text order; a range gives its places that exist."""
    places_of_type = _places_of_type(room)
    surfaces, pattern = _type_pattern(tuple(sorted(places_of_type)))
    mentions = []
    for match in pattern.finditer(clause):
        kinds, spans = surfaces[match["name"]], _spans(match["numbers"] or "")
        named = sorted(place for kind in kinds for place in places_of_type[kind])
        places = tuple(
            place for _, number, place in named if not spans or any(low <= number <= high for low, high in spans)
        )
        words = re.sub(r"\b(?:the|a|an|any|all|every|each)\b", " ", clause[: match.start()]).split()
        mentions.append(Mention(places, bool(spans), match.start(), words[-1] if words else ""))
    return [mention for mention in mentions if mention.places]


def find_things(clause: str, wanted: Sequence[str]) -> list[tuple[str, int]]:
    """Return (type, position) of each thing that the clause names, `wanted` or known to ALFWorld."""
    return [(match[1], match.start()) for match in _thing_pattern(tuple(wanted)).finditer(clause)]


@lru_cache(maxsize=256)
def _thing_pattern(wanted: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b({'|'.join([*filter(None, wanted), _THINGS])})(?:e?s)?\b")


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
    surfaces = {form: kinds for name, kinds in spellings.items() for form in (name, plural(name))}
    names = "|".join(sorted(surfaces, key=len, reverse=True))
    span = r"\d+(?:\s*(?:-|to|through)\s*\d+)?"
    # In "drawer 1 and 2 mugs" the 2 counts mugs.
    counts = rf"(?!\d|\s*(?:steps?|times?|more|{_THINGS})(?:e?s)?\b)"
    numbers = rf"(?P<numbers>{span}(?:\s*(?:,\s*and|,\s*or|,|and|or|&|/)\s*{span}{counts})*)"
    return surfaces, re.compile(rf"\b(?P<name>{names})\b(?:\s*(?:#|no\.|numbers?\b)?\s*{numbers})?")


def plural(kind: str) -> str:
    """Return the plural: `shelves` for `shelf`."""
    return f"{kind[:-1]}ves" if kind.endswith("f") else f"{kind}es" if kind.endswith(("s", "x", "ch")) else f"{kind}s"


def _spans(numbers: str) -> list[tuple[int, int]]:
    spans = re.finditer(r"(\d+)(?:\s*(?:-|to|through)\s*(\d+))?", numbers)
    # Python refuses to parse numbers with thousands of digits; no room needs more than nine.
    return [(int(span[1][:9]), int((span[2] or span[1])[:9])) for span in spans]
