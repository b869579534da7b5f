"""Writer of generated worlds as PDDL problems, and of the commands that win them."""

from collections.abc import Iterator, Mapping, Sequence

from retroformer.environments.alfworld.game import rooms
from retroformer.environments.alfworld.game.engine import names
from retroformer.environments.alfworld.game.rooms import Kind
from retroformer.environments.alfworld.game.worlds import Wish, World, kind_of

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
            yield from self._fetch(thing)
            if wish.kind == "look":
                yield from self._look_at_it()
            else:
                yield from self._deliver(thing)

    def _fetch(self, thing: str) -> Iterator[str]:
        place = self._world.where[thing]
        yield from self._go(place)
        yield from self._open(place)
        yield f"take {self._name(thing)} from {self._name(place)}"

    def _look_at_it(self) -> Iterator[str]:
        lamp = self._world.lamp
        if lamp:
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
