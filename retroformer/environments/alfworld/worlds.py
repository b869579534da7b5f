"""Worlds of generated games: the wish, the room and where everything is; the same as PDDL; the winning commands."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple

from retroformer.environments.alfworld import rooms
from retroformer.environments.alfworld.engine import names
from retroformer.environments.alfworld.rooms import Kind

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


_GOALS: dict[Kind, str] = {
    "look": (
        "(exists (?lamp ?thing - object ?place - receptacle ?who - agent ?where - location) (and "
        "(objectType ?lamp {place}Type) (toggleable ?lamp) (isToggled ?lamp) (inReceptacle ?lamp ?place) "
        "(receptacleAtLocation ?place ?where) (atLocation ?who ?where) "
        "(objectType ?thing {thing}Type) (holds ?who ?thing)))"
    ),
    "pick": "{placed}",
    "clean": "{placed} (isClean ?thing)",
    "cool": "{placed} (isCool ?thing)",
    "heat": "{placed} (isHot ?thing)",
    "two": "{placed} (not (= ?thing ?other)) (inReceptacle ?other ?place) (objectType ?other {thing}Type)",
}
_PLACED = "(inReceptacle ?thing ?place) (objectType ?thing {thing}Type) (receptacleType ?place {place}Type)"


def problem(world: World) -> str:
    """Return the world and its goal in PDDL, for ALFWorld's domain."""
    kinds_of_places = sorted({kind_of(place) for place in world.places})
    kinds_of_things = sorted({kind_of(thing) for thing in world.where})
    locations = [f"loc_bar_{index:02d}" for index in range(len(world.places) + 1)]
    objects = [
        "agent1 - agent",
        *(f"{place} - receptacle" for place in world.places),
        *(f"{thing} - object" for thing in world.where),
        *(f"{location} - location" for location in locations),
        *(f"{kind}Type - rtype" for kind in kinds_of_places),
        *(f"{kind}Type - otype" for kind in kinds_of_things),
    ]
    facts = [
        f"atLocation agent1 {locations[0]}",
        *_facts_of_places(world.places, locations[1:]),
        *_facts_of_things(world, dict(zip(world.places, locations[1:], strict=True))),
        *(
            f"canContain {place}Type {thing}Type"
            for place in kinds_of_places
            for thing in kinds_of_things
            if thing in rooms.THINGS and rooms.fits(thing, place)
        ),
    ]
    declared, inits = "\n".join(objects), "\n".join(f"({fact})" for fact in facts)
    return f"(define (problem home)\n(:domain alfred)\n(:objects\n{declared})\n(:init\n{inits})\n{_goal(world.wish)})\n"


def _goal(wish: Wish) -> str:
    condition = _GOALS[wish.kind].replace("{placed}", _PLACED).format(thing=wish.thing, place=wish.place)
    if wish.kind == "look":
        return f"(:goal {condition})"
    variables = "?thing ?other - object" if wish.kind == "two" else "?thing - object"
    return f"(:goal (exists (?place - receptacle {variables}) (and {condition})))"


def _facts_of_places(places: Sequence[str], locations: Sequence[str]) -> Iterator[str]:
    for place, location in zip(places, locations, strict=True):
        yield f"receptacleType {place} {kind_of(place)}Type"
        yield f"receptacleAtLocation {place} {location}"
        if kind_of(place) in rooms.OPENABLE:
            yield f"openable {place}"


def _facts_of_things(world: World, location_of: Mapping[str, str]) -> Iterator[str]:
    for thing, place in world.where.items():
        yield f"objectType {thing} {kind_of(thing)}Type"
        yield f"inReceptacle {thing} {place}"
        yield f"objectAtLocation {thing} {location_of[place]}"
        if thing == world.lamp:
            yield f"toggleable {thing}"
            continue
        yield f"pickupable {thing}"
        for trait in sorted(rooms.THINGS[kind_of(thing)].traits - {"bulky"}):
            yield f"{trait} {thing}"


def walkthrough(world: World) -> tuple[str, ...]:
    """Return winning commands, in the grammar `move`."""
    return tuple(_Plan(world).commands())


class _Plan:
    """Shortest plan for an agent that knows where everything is, one thing after another."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names = names(entity.lower() for entity in (*world.places, *world.where))
        self._at = ""
        self._opened: set[str] = set()

    def commands(self) -> Iterator[str]:
        wish = self._world.wish
        wanted = [thing for thing in self._world.where if kind_of(thing) == wish.thing]
        for thing in wanted[: 2 if wish.kind == "two" else 1]:
            place = self._world.where[thing]
            yield from self._go(place)
            yield from self._open(place)
            yield f"take {self._name(thing)} from {self._name(place)}"
            if wish.kind != "look":
                yield from self._deliver(thing)
            elif lamp := self._world.lamp:
                yield from self._go(self._world.where[lamp])
                yield f"use {self._name(lamp)}"

    def _deliver(self, thing: str) -> Iterator[str]:
        wish = self._world.wish
        if wish.kind in rooms.APPLIANCES:
            appliance = self._first(rooms.APPLIANCES[wish.kind])
            yield from self._go(appliance)
            yield f"{wish.kind} {self._name(thing)} with {self._name(appliance)}"
        destination = self._first(wish.place)
        yield from self._go(destination)
        yield from self._open(destination)
        yield f"move {self._name(thing)} to {self._name(destination)}"

    def _go(self, place: str) -> Iterator[str]:
        if place != self._at:
            self._at = place
            yield f"go to {self._name(place)}"

    def _open(self, place: str) -> Iterator[str]:
        if kind_of(place) in rooms.OPENABLE and place not in self._opened:
            self._opened.add(place)
            yield f"open {self._name(place)}"

    def _first(self, kind: str) -> str:
        return next(place for place in self._world.places if kind_of(place) == kind)

    def _name(self, entity: str) -> str:
        return self._names[entity.lower()]
