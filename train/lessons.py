"""Advice for the demonstrations that teach an actor to read: its words, and what a sensible reader makes of them.

The writer knows the game, so that hints can be right, half right or wrong by intention. The reader of a lesson gets
its meaning, not its words: the demonstration shows what the words are good for.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from retroformer.actors.advice import Advice
from retroformer.actors.clauses import plural
from retroformer.environments.alfworld.compact import number_of, type_of
from retroformer.environments.alfworld.reading import Experience, Goal
from retroformer.environments.alfworld.solution import Solution
from retroformer.reflectors.wording import DEMONSTRATED, PHRASES, listed, say

MOST_PLACES = 8
"""How many places one sentence sends the reader to at most."""
RIGHT_HINTS = 0.6
"""Share of hints about places that name one where a thing of the task is."""
INVENTED = 0.2
"""Share of hints about places that name one which the room may lack."""
PADDED = 0.15
"""Share of useful advice that comes with a phrase which says nothing."""
EARLIER = 0.15
"""Share of advised attempts that were advised before, in vain."""


class Lesson(NamedTuple):
    """What is read before an attempt."""

    kind: str
    texts: tuple[str, ...]
    """Reflections, oldest first."""
    advice: Advice
    """What they mean in this game."""


NO_LESSON = Lesson("none", (), Advice())


@dataclass(frozen=True)
class Game:
    """What the writer knows of a game when it writes."""

    goal: Goal
    order: tuple[str, ...]
    """Its places, as the room line lists them."""
    solution: Solution
    seen: Experience
    """What a failed attempt has shown."""

    def needed(self) -> tuple[tuple[str, str], ...]:
        """Things of the task that the failed attempt saw, each with the place where it was seen first."""
        return tuple(
            pair
            for kind, count in ((self.goal.thing, self.goal.count), (self.goal.lamp, 1))
            for pair in [found for found in self.seen.first_seen.items() if kind and type_of(found[0]) == kind][:count]
        )

    @property
    def left(self) -> tuple[str, ...]:
        """Places that the failed attempt did not look into, from the last one that it did look into onwards."""
        looked = [index for index, place in enumerate(self.order) if place in self.seen.contents]
        start = looked[-1] + 1 if looked else 0
        return tuple(one for one in (*self.order[start:], *self.order[:start]) if one not in self.seen.contents)


def write_lesson(game: Game, other: Game, random: Random) -> Lesson:
    """A lesson drawn from the mixture; `other` is where advice about another task comes from."""
    kind = random.choices(tuple(MIXTURE), tuple(MIXTURE.values()))[0]
    if kind == "none":
        return NO_LESSON
    lesson = Lesson(kind, *_written(kind, game, other, random))
    if not lesson.texts[0]:
        return NO_LESSON
    if kind != "phrase" and random.random() < PADDED:
        words = [lesson.texts[0], random.choice(PHRASES)]
        lesson = lesson._replace(texts=(" ".join(random.sample(words, 2)),))
    return _after_another(lesson, game, random) if random.random() < EARLIER else lesson


def meaning(advice: Advice, goal: Goal, order: Sequence[str]) -> Advice:
    """What advice for any task means for this one: places of this room, and sightings of what is wanted here."""
    room = set(order)
    return Advice(
        first=tuple(place for place in advice.first if place in room),
        skip=tuple(place for place in advice.skip if place in room),
        sightings={
            kind: tuple(place for place in places if place in room)
            for kind, places in advice.sightings.items()
            if kind in (goal.thing, goal.lamp)
        },
        targets=tuple(place for place in advice.targets if place in room and type_of(place) == goal.target),
        appliances=tuple(place for place in advice.appliances if place in room and type_of(place) == goal.appliance),
    )


def _written(kind: str, game: Game, other: Game, random: Random) -> tuple[tuple[str], Advice]:
    text, advice = _WRITERS[kind](other if kind == "other" else game, random)
    return (text,), meaning(advice, game.goal, game.order)


def _looking_back(game: Game, random: Random) -> tuple[str, Advice]:
    """What the failed attempt saw, where it need not look again, and where to go on; any of the last two left out."""
    sentences, sightings = _sightings(game.needed(), random)
    advice = Advice(sightings=sightings)
    if len(game.needed()) == game.goal.count + bool(game.goal.lamp):
        return " ".join(sentences), advice
    form = random.choices(("onwards", "both", "skip"), (0.6, 0.25, 0.15))[0]
    looked = tuple(place for place in game.order if place in game.seen.contents)
    if looked and form != "onwards":
        sentences.append(_about(DEMONSTRATED.skip, looked, game, random))
        advice = replace(advice, skip=looked)
    if game.left and form != "skip":
        places = game.left[: random.randint(1, MOST_PLACES)]
        sentences.append(_about(DEMONSTRATED.search, places, game, random))
        advice = replace(advice, first=as_listed(places))
    return " ".join(sentences), advice


def _all_knowing(game: Game, random: Random) -> tuple[str, Advice]:
    """Where the things are and, often, what to do with them."""
    sentences, sightings = _sightings(game.solution.things, random)
    advice = Advice(sightings=sightings)
    if random.random() < 0.5:
        if place := game.solution.appliance:
            sentences.append(say(DEMONSTRATED.deed, random, deed=game.goal.deed, place=place))
            advice = replace(advice, appliances=(place,))
        if place := game.solution.target:
            sentences.append(say(DEMONSTRATED.target, random, place=place))
            advice = replace(advice, targets=(place,))
    return " ".join(sentences), advice


def _places(game: Game, random: Random) -> tuple[str, Advice]:
    """Some places, right by chance, and sometimes one that this room does not have."""
    count = min(random.choice((1, 1, 2, 2, 3, 4, 6)), len(game.order))
    places = random.sample(game.order, count)
    if game.solution.things and random.random() < RIGHT_HINTS:
        places[random.randrange(count)] = random.choice(game.solution.things)[1]
    if random.random() < INVENTED:
        places.append(f"{type_of(random.choice(game.order))} {random.randint(2, 30)}")
    return _about(DEMONSTRATED.search, places, game, random), Advice(first=as_listed(places))


def _types(game: Game, random: Random) -> tuple[str, Advice]:
    """All places of a type, as in `Look in the drawers.`."""
    right = [place for _, place in game.solution.things]
    place = random.choice(right) if right and random.random() < RIGHT_HINTS else random.choice(game.order)
    kind = type_of(place)
    places = tuple(one for one in game.order if type_of(one) == kind)
    words = f"the {kind if len(places) == 1 else plural(kind)}"
    return say(DEMONSTRATED.search, random, places=words, kind=game.goal.thing), Advice(first=places)


def _phrase(game: Game, random: Random) -> tuple[str, Advice]:
    """Nothing."""
    return " ".join(random.sample(PHRASES, random.choice((1, 1, 2)))), Advice()


_WRITERS: Mapping[str, Callable[[Game, Random], tuple[str, Advice]]] = MappingProxyType(
    {
        "looking back": _looking_back,
        "all-knowing": _all_knowing,
        "places": _places,
        "types": _types,
        "other": lambda game, random: random.choice((_looking_back, _all_knowing))(game, random),
        "phrase": _phrase,
    }
)

MIXTURE: Mapping[str, float] = MappingProxyType(
    {
        "none": 0.2,
        "looking back": 0.32,
        "all-knowing": 0.14,
        "places": 0.16,
        "types": 0.06,
        "other": 0.07,
        "phrase": 0.05,
    }
)
"""Shares of the kinds of lesson.

none: no advice. looking back: from a failed attempt. all-knowing: where things are. places, types: hints, some right.
other: written for another game. phrase: says nothing.
"""


def _sightings(things: Sequence[tuple[str, str]], random: Random) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    sightings: dict[str, tuple[str, ...]] = {}
    for thing, place in things:
        sightings[type_of(thing)] = (*sightings.get(type_of(thing), ()), place)
    return [say(DEMONSTRATED.seen, random, thing=thing, place=place) for thing, place in things], sightings


def _about(sentences: Sequence[str], places: Sequence[str], game: Game, random: Random) -> str:
    return say(sentences, random, places=listed(places), kind=game.goal.thing)


def as_listed(places: Sequence[str]) -> tuple[str, ...]:
    """The places in the order in which `listed` names them: types as first met, numbers ascending."""
    kinds = list(dict.fromkeys(map(type_of, places)))
    return tuple(sorted(set(places), key=lambda place: (kinds.index(type_of(place)), number_of(place))))


def _after_another(lesson: Lesson, game: Game, random: Random) -> Lesson:
    """The lesson with an older one before it: what the older one asked for was tried, what it saw is still there."""
    tried = tuple(place for place in game.order if place in game.seen.contents)[:MOST_PLACES]
    if not tried:
        return lesson
    older = _about(DEMONSTRATED.search, tried, game, random)
    named = {*lesson.advice.first, *(place for found in lesson.advice.sightings.values() for place in found)}
    skip = tuple(dict.fromkeys((*lesson.advice.skip, *(place for place in tried if place not in named))))
    return lesson._replace(texts=(older, *lesson.texts), advice=replace(lesson.advice, skip=skip))
