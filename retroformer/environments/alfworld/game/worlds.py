"""Sampler of the world of a generated game: the wish, the room, and where everything is."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from retroformer.environments.alfworld.game import rooms
from retroformer.environments.alfworld.game.rooms import Kind

_SECOND_COPY = 0.3
"""Probability of one more copy of the wanted thing than the task needs."""

SENTENCES: dict[Kind, tuple[str, str]] = {
    "look": ("look at {thing} under the {place}", "examine the {thing} with the {place}"),
    "pick": ("put a {thing} in {place}", "put some {thing} on {place}"),
    "clean": ("put a clean {thing} in {place}", "clean some {thing} and put it in {place}"),
    "cool": ("put a cool {thing} in {place}", "cool some {thing} and put it in {place}"),
    "heat": ("put a hot {thing} in {place}", "heat some {thing} and put it in {place}"),
    "two": ("put two {thing} in {place}", "find two {thing} and put them in {place}"),
}
"""ALFWorld's two wordings of each kind of task."""


class Wish(NamedTuple):
    """Request of a task."""

    kind: Kind
    thing: str
    place: str
    """Destination, or the lamp."""


class World(NamedTuple):
    """Room with things in it. Places and things are written as ALFWorld's entities: `Mug_bar_01`."""

    wish: Wish
    sentence: str
    places: tuple[str, ...]
    where: dict[str, str]
    """Thing -> its place."""
    lamp: str | None


def draw_wish(kind: Kind, random: Random) -> Wish:
    thing = random.choice(rooms.things_for(kind))
    return Wish(kind, thing, random.choice(rooms.destinations_for(kind, thing)))


def draw_world(wish: Wish, receptacles: int, random: Random) -> World:
    """Return a room of `receptacles` places in which the wish can be fulfilled and is not yet."""
    room = rooms.THINGS[wish.thing].room
    stands = rooms.LAMP_STANDS.get(room)
    stand = _weighted(stands, random) if stands else None
    needed = {*rooms.THINGS[wish.thing].homes, *filter(None, (stand, rooms.APPLIANCES.get(wish.kind)))}
    if wish.kind != "look":
        needed.add(wish.place)
    places = _draw_places(rooms.ROOMS[room], needed, receptacles, random)
    where = {thing: _place_of(thing, wish, places, random) for thing in _draw_things(wish, places, random)}
    lamp = _entity(rooms.LAMP, 1) if stand else None
    if lamp:
        where[lamp] = random.choice([place for place in places if kind_of(place) == stand])
    wording = random.choice(SENTENCES[wish.kind])
    return World(wish, wording.format(thing=wish.thing.lower(), place=wish.place.lower()), places, where, lamp)


def _draw_places(room: Mapping[str, tuple[int, int]], needed: set[str], number: int, random: Random) -> tuple[str, ...]:
    counts = dict.fromkeys(sorted(needed), 1)
    while sum(counts.values()) < number:
        free = {kind: weight for kind, (weight, most) in room.items() if counts.get(kind, 0) < most}
        kind = _weighted(free, random)
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(_entity(kind, index) for kind in sorted(counts) for index in range(1, counts[kind] + 1))


def _draw_things(wish: Wish, places: Sequence[str], random: Random) -> list[str]:
    """Return the wanted things and, about one per place, others that have a home here."""
    wanted = 1 + (wish.kind == "two") + (wish.kind != "look" and random.random() < _SECOND_COPY)
    present = {kind_of(place) for place in places}
    room = rooms.THINGS[wish.thing].room
    others = [
        name
        for name, thing in rooms.THINGS.items()
        if thing.room == room and name != wish.thing and not present.isdisjoint(thing.homes)
    ]
    drawn = [random.choice(others) for _ in places]
    counts = {wish.thing: wanted, **{name: min(drawn.count(name), 2) for name in others}}
    return [_entity(name, index) for name, count in counts.items() for index in range(1, count + 1)]


def _place_of(thing: str, wish: Wish, places: Sequence[str], random: Random) -> str:
    """Return a home with probability AT_HOME, else another fitting place; never the wanted thing's destination."""
    kind = kind_of(thing)
    allowed = [place for place in places if kind != wish.thing or kind_of(place) != wish.place]
    present = {kind_of(place) for place in allowed}
    homes = {home: weight for home, weight in rooms.THINGS[kind].homes.items() if home in present}
    elsewhere = [place for place in allowed if kind_of(place) not in homes and rooms.fits(kind, kind_of(place))]
    if elsewhere and random.random() >= rooms.AT_HOME:
        return random.choice(elsewhere)
    home = _weighted(homes, random)
    return random.choice([place for place in allowed if kind_of(place) == home])


def _weighted(weights: Mapping[str, float], random: Random) -> str:
    return random.choices(list(weights), list(weights.values()))[0]


def _entity(kind: str, index: int) -> str:
    # ALFWorld names a basin after its sink: the second part of the entity makes it a `sinkbasin`.
    base = kind.removesuffix("Basin")
    return f"{base}_bar_{index:02d}" + (f"_bar_{kind}" if base != kind else "")


def kind_of(entity: str) -> str:
    """Return the kind of a place or thing: `SinkBasin` for `Sink_bar_01_bar_SinkBasin`."""
    base, *_, last = entity.split("_bar_")
    return last if last.endswith("Basin") else base
