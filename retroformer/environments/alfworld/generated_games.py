"""Generated games: unlimited homes of our own, in ALFWorld's domain, grammar and vocabulary.

A game is a function of the seed, the split, its index and the number of places; it depends on no other game. An id such
as `generated/train/pick-mug-shelf-000017` contains the task's kind, thing and destination (or lamp), which follow from
seed, split and index. Splits draw from disjoint streams. The possible actions are those of the package's `alfred.pddl`,
worded by its `alfred.twl2`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain, count, islice
from random import Random
from typing import NamedTuple

from retroformer.environments.alfworld import generated_rooms as rooms
from retroformer.environments.alfworld.engine import Game, in_grammar, names
from retroformer.environments.alfworld.environment import Alfworld, AlfworldEnvironment
from retroformer.environments.alfworld.generated_rooms import KINDS, Kind
from retroformer.environments.alfworld.python_planner import PythonPlanner
from retroformer.errors import UnknownTask
from retroformer.files.packages import GAMES, package_folder
from retroformer.method.records import Task

SPLITS = ("train", "held_out")
LISTED = 4000
"""Number of games that `tasks` lists; later games can be played by id."""
_SECOND_COPY = 0.3
"""Probability of one more copy of the wanted thing than the task needs."""
_ID = re.compile(r"generated/(?P<split>\w+)/(?P<goal>[a-z]+-[a-z]+-[a-z]+)-(?P<index>\d{6,9})")

SENTENCES: dict[Kind, tuple[str, str]] = {
    "look": ("look at {thing} under the {place}", "examine the {thing} with the {place}"),
    "pick": ("put a {thing} in {place}", "put some {thing} on {place}"),
    "clean": ("put a clean {thing} in {place}", "clean some {thing} and put it in {place}"),
    "cool": ("put a cool {thing} in {place}", "cool some {thing} and put it in {place}"),
    "heat": ("put a hot {thing} in {place}", "heat some {thing} and put it in {place}"),
    "two": ("put two {thing} in {place}", "find two {thing} and put them in {place}"),
}
"""ALFWorld's two wordings of each kind of task."""

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


class HouseholdGoal(NamedTuple):
    """Request of a task."""

    kind: Kind
    thing: str
    place: str
    """Destination, or the lamp."""


class World(NamedTuple):
    """Room with things in it. Places and things are written as ALFWorld's entities: `Mug_bar_01`."""

    goal: HouseholdGoal
    sentence: str
    places: tuple[str, ...]
    where: dict[str, str]
    """Thing -> its place."""
    lamp: str | None


class GeneratedGames:
    """Games of one split; games of the other split can be played by id."""

    def __init__(self, section: Alfworld, seed: int) -> None:
        self._section, self._seed = section, seed

    def tasks(self) -> tuple[Task, ...]:
        """Return the first games of the split and of the configured types, by index. Raises UnknownTask."""
        _check_split(self._section.split)
        return _listed(self._seed, self._section.split, tuple(self._section.task_types or KINDS))

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Return winning commands, known by construction, in the configured grammar. Raises UnknownTask."""
        return self.game(task).walkthrough

    def environment(self) -> AlfworldEnvironment:
        return AlfworldEnvironment(self.game, self._section.max_steps, PythonPlanner())

    def game(self, task: Task) -> Game:
        """Return the texts of a game in the configured grammar. Raises UnknownTask, MissingInput."""
        parts = _ID.fullmatch(task.id)
        if parts is None:
            real = _task(self._seed, "train", 17).id
            raise UnknownTask(f"{task.id!r} is not the id of a generated game: they look like {real!r}.")
        split, index = parts["split"], int(parts["index"])
        _check_split(split)
        real = _task(self._seed, split, index).id
        if real != task.id:
            raise UnknownTask(f"No generated game {task.id!r} with seed {self._seed}. Did you mean {real!r}?")
        random = _random(self._seed, "world", split, index)
        world = draw_world(_goal(self._seed, split, index), self._section.receptacles, random)
        domain, texts = _alfworld_logic()
        texts = texts.replace("UNKNOWN GOAL", world.sentence)
        return in_grammar(Game(domain, texts, problem(world), walkthrough(world)), self._section.grammar)


@lru_cache(maxsize=8)
def _listed(seed: int, split: str, wanted: tuple[Kind, ...]) -> tuple[Task, ...]:
    """Return the first games of these types, cached: a stage needs them several times, and drawing takes 0.1 s."""
    kinds = (_kinds(seed, split, block) for block in count())
    indices = (index for index, kind in enumerate(chain.from_iterable(kinds)) if kind in wanted)
    return tuple(_task(seed, split, index) for index in islice(indices, LISTED))


def _task(seed: int, split: str, index: int) -> Task:
    goal = _goal(seed, split, index)
    name = f"{goal.kind}-{goal.thing.lower()}-{goal.place.lower()}-{index:06d}"
    return Task(id=f"generated/{split}/{name}", environment="alfworld", split=split)


def _goal(seed: int, split: str, index: int) -> HouseholdGoal:
    block, position = divmod(index, len(KINDS))
    return draw_goal(_kinds(seed, split, block)[position], _random(seed, "wish", split, index))


@lru_cache(maxsize=1024)
def _kinds(seed: int, split: str, block: int) -> tuple[Kind, ...]:
    """Return the kinds of a block of six consecutive games, each of a different kind."""
    return tuple(_random(seed, "kinds", split, block).sample(KINDS, len(KINDS)))


def _random(seed: int, purpose: str, split: str, index: int) -> Random:
    return Random(f"retroformer/{seed}/{split}/{index}/{purpose}")


def _check_split(split: str) -> None:
    if split not in SPLITS:
        close = difflib.get_close_matches(split, SPLITS, n=1, cutoff=0.4) or SPLITS
        raise UnknownTask(f"No split {split!r} of generated games. Did you mean {' or '.join(map(repr, close))}?")


@cache
def _alfworld_logic() -> tuple[str, str]:
    """Read ALFWorld's domain and grammar from the package without importing it (its import creates folders)."""
    data = package_folder(GAMES) / "data"
    return (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()


def draw_goal(kind: Kind, random: Random) -> HouseholdGoal:
    thing = random.choice(rooms.things_for(kind))
    return HouseholdGoal(kind, thing, random.choice(rooms.destinations_for(kind, thing)))


def draw_world(goal: HouseholdGoal, receptacles: int, random: Random) -> World:
    """Return a room of `receptacles` places in which the goal can be fulfilled and is not yet."""
    room = rooms.THINGS[goal.thing].room
    stands = rooms.LAMP_STANDS.get(room)
    stand = _weighted(stands, random) if stands else None
    needed = {*rooms.THINGS[goal.thing].homes, *filter(None, (stand, rooms.APPLIANCES.get(goal.kind)))}
    if goal.kind != "look":
        needed.add(goal.place)
    places = _draw_places(rooms.ROOMS[room], needed, receptacles, random)
    where = {thing: _place_of(thing, goal, places, random) for thing in _draw_things(goal, places, random)}
    lamp = _entity(rooms.LAMP, 1) if stand else None
    if lamp:
        where[lamp] = random.choice([place for place in places if kind_of(place) == stand])
    wording = random.choice(SENTENCES[goal.kind])
    return World(goal, wording.format(thing=goal.thing.lower(), place=goal.place.lower()), places, where, lamp)


def _draw_places(room: Mapping[str, tuple[int, int]], needed: set[str], number: int, random: Random) -> tuple[str, ...]:
    counts = dict.fromkeys(sorted(needed), 1)
    while sum(counts.values()) < number:
        free = {kind: weight for kind, (weight, most) in room.items() if counts.get(kind, 0) < most}
        kind = _weighted(free, random)
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(_entity(kind, index) for kind in sorted(counts) for index in range(1, counts[kind] + 1))


def _draw_things(goal: HouseholdGoal, places: Sequence[str], random: Random) -> list[str]:
    """Return the wanted things and, about one per place, others that have a home here."""
    wanted = 1 + (goal.kind == "two") + (goal.kind != "look" and random.random() < _SECOND_COPY)
    present = {kind_of(place) for place in places}
    room = rooms.THINGS[goal.thing].room
    others = [
        name
        for name, thing in rooms.THINGS.items()
        if thing.room == room and name != goal.thing and not present.isdisjoint(thing.homes)
    ]
    drawn = [random.choice(others) for _ in places]
    counts = {goal.thing: wanted, **{name: min(drawn.count(name), 2) for name in others}}
    return [_entity(name, index) for name, count in counts.items() for index in range(1, count + 1)]


def _place_of(thing: str, goal: HouseholdGoal, places: Sequence[str], random: Random) -> str:
    """Return a home with probability AT_HOME, else another fitting place; never the wanted thing's destination."""
    kind = kind_of(thing)
    allowed = [place for place in places if kind != goal.thing or kind_of(place) != goal.place]
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
    goal = _goal_condition(world.goal)
    return f"(define (problem home)\n(:domain alfred)\n(:objects\n{declared})\n(:init\n{inits})\n{goal})\n"


def _goal_condition(goal: HouseholdGoal) -> str:
    condition = _GOALS[goal.kind].replace("{placed}", _PLACED).format(thing=goal.thing, place=goal.place)
    if goal.kind == "look":
        return f"(:goal {condition})"
    variables = "?thing ?other - object" if goal.kind == "two" else "?thing - object"
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
    """Return winning commands in the grammar `move`, shortest for an agent that takes one thing after another."""
    goal, entities = world.goal, (*world.places, *world.where)
    shown = names(entity.lower() for entity in entities)
    name = {entity: shown[entity.lower()] for entity in entities}
    commands, at, opened = list[str](), "", set[str]()

    def visit(place: str, *, opens: bool = True) -> str:
        nonlocal at
        if place != at:
            commands.append(f"go to {name[place]}")
        if opens and kind_of(place) in rooms.OPENABLE and place not in opened:
            opened.add(place)
            commands.append(f"open {name[place]}")
        at = place
        return name[place]

    def first(kind: str) -> str:
        return next(place for place in world.places if kind_of(place) == kind)

    things = [thing for thing in world.where if kind_of(thing) == goal.thing]
    for thing in things[: 2 if goal.kind == "two" else 1]:
        place = visit(world.where[thing])
        commands.append(f"take {name[thing]} from {place}")
        if goal.kind == "look" and world.lamp:
            visit(world.where[world.lamp], opens=False)
            commands.append(f"use {name[world.lamp]}")
            break
        if goal.kind in rooms.APPLIANCES:
            place = visit(first(rooms.APPLIANCES[goal.kind]), opens=False)
            commands.append(f"{goal.kind} {name[thing]} with {place}")
        place = visit(first(goal.place))
        commands.append(f"move {name[thing]} to {place}")
    return tuple(commands)
