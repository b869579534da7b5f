"""Vocabulary of generated homes: rooms, places, things, and where things usually are.

A thing is in one of its homes with probability 0.85, else in any other place where it fits, so a reader of many games
can learn where to look. All names are ALFWorld's. A thing's destinations are never its homes.
"""

from typing import Literal, NamedTuple

Kind = Literal["look", "pick", "clean", "cool", "heat", "two"]
KINDS: tuple[Kind, ...] = ("look", "pick", "clean", "cool", "heat", "two")

AT_HOME = 0.85
"""Probability that a thing is in one of its homes."""

APPLIANCES: dict[Kind, str] = {"clean": "SinkBasin", "cool": "Fridge", "heat": "Microwave"}
"""Place that brings a thing into the state a task asks for; a thing to `clean` has the trait `cleanable`, and so on."""

OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave", "Safe"})

_SURFACES = """
    ArmChair Bed CoffeeTable CounterTop Desk DiningTable Dresser Ottoman Shelf SideTable Sofa
    Toilet TVStand
"""
SURFACES = frozenset(_SURFACES.split())
"""Places on which anything can be put."""

STORAGE = frozenset({"Cabinet", "Drawer", "GarbageCan", "Safe"})
"""Places into which anything that is not bulky can be put."""


class Thing(NamedTuple):
    """Kind of portable object."""

    room: str
    homes: dict[str, float]
    """Places where it usually is, with probabilities that sum to AT_HOME."""
    destinations: tuple[str, ...]
    """Places where a task may want it."""
    traits: frozenset[str] = frozenset()
    """Subset of cleanable, coolable, heatable, sliceable, isReceptacleObject (PDDL's names), and bulky."""


def _places(text: str) -> dict[str, tuple[int, int]]:
    return {place: (int(weight), int(most)) for place, weight, most in (entry.split() for entry in text.split(","))}


ROOMS: dict[str, dict[str, tuple[int, int]]] = {
    "kitchen": _places(
        "Cabinet 6 20, CoffeeMachine 1 1, CounterTop 3 3, DiningTable 1 2, Drawer 5 20, Fridge 2 1, "
        "GarbageCan 1 1, Microwave 2 1, Shelf 2 6, SinkBasin 2 1, StoveBurner 2 4, Toaster 1 1"
    ),
    "bedroom": _places(
        "ArmChair 1 1, Bed 2 2, Desk 2 2, Drawer 6 20, Dresser 1 1, GarbageCan 1 1, LaundryHamper 1 1, "
        "Safe 1 1, Shelf 5 20, SideTable 2 2"
    ),
    "living room": _places(
        "ArmChair 2 2, Cabinet 4 20, CoffeeTable 2 2, DiningTable 1 1, Drawer 5 20, Dresser 1 1, "
        "GarbageCan 1 1, Ottoman 1 1, Shelf 4 10, SideTable 2 3, Sofa 2 2, TVStand 1 1"
    ),
    "bathroom": _places(
        "BathtubBasin 1 1, Cabinet 5 20, CounterTop 2 2, Drawer 4 20, GarbageCan 1 1, HandTowelHolder 1 2, "
        "Shelf 2 6, SinkBasin 2 2, Toilet 1 1, ToiletPaperHanger 1 1"
    ),
}
"""Places of each room: weight in the draw, and maximum number."""

LAMP = "DeskLamp"
"""Name of the only lamp in the released games' tasks."""

LAMP_STANDS: dict[str, dict[str, float]] = {
    "bedroom": {"Desk": 0.5, "SideTable": 0.35, "Dresser": 0.15},
    "living room": {"SideTable": 0.5, "Dresser": 0.35, "CoffeeTable": 0.15},
}
"""Room of `look` tasks -> places where the lamp stands, with probabilities."""


def _thing(room: str, homes: str, destinations: str, traits: str = "") -> Thing:
    """Return a thing whose homes are written `Fridge .50 DiningTable .35`."""
    words = homes.split()
    weights = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    return Thing(room, weights, tuple(destinations.split()), frozenset(traits.split()))


_FOOD = "cleanable coolable heatable sliceable"
_DISH = "cleanable coolable heatable isReceptacleObject"
_POT = "cleanable coolable isReceptacleObject bulky"

THINGS: dict[str, Thing] = {
    "Apple": _thing("kitchen", "Fridge .50 DiningTable .35", "CounterTop GarbageCan SinkBasin", _FOOD),
    "Bowl": _thing(
        "kitchen", "Cabinet .50 Shelf .35", "CounterTop DiningTable Fridge", "cleanable coolable isReceptacleObject"
    ),
    "Bread": _thing(
        "kitchen", "CounterTop .50 Cabinet .35", "DiningTable Fridge GarbageCan", "coolable heatable sliceable"
    ),
    "ButterKnife": _thing("kitchen", "Drawer .55 DiningTable .30", "CounterTop SinkBasin", "cleanable"),
    "Cup": _thing("kitchen", "SinkBasin .50 Cabinet .35", "CounterTop Microwave Shelf", _DISH),
    "DishSponge": _thing("kitchen", "SinkBasin .55 Drawer .30", "CounterTop GarbageCan Shelf", "cleanable"),
    "Egg": _thing(
        "kitchen", "Fridge .55 SinkBasin .30", "CounterTop DiningTable GarbageCan", "cleanable coolable heatable"
    ),
    "Fork": _thing("kitchen", "Drawer .60 DiningTable .25", "CounterTop SinkBasin", "cleanable"),
    "Glassbottle": _thing("kitchen", "GarbageCan .45 Cabinet .40", "CounterTop DiningTable Shelf"),
    "Kettle": _thing("kitchen", "StoveBurner .55 Cabinet .30", "CounterTop DiningTable Shelf", "cleanable bulky"),
    "Knife": _thing("kitchen", "Drawer .60 CounterTop .25", "DiningTable SinkBasin", "cleanable"),
    "Ladle": _thing("kitchen", "Cabinet .50 Drawer .35", "CounterTop DiningTable SinkBasin", "cleanable"),
    "Lettuce": _thing("kitchen", "Fridge .55 CounterTop .30", "DiningTable GarbageCan", "cleanable coolable sliceable"),
    "Mug": _thing("kitchen", "CoffeeMachine .45 Cabinet .40", "CounterTop DiningTable Shelf", _DISH),
    "Pan": _thing("kitchen", "StoveBurner .60 Cabinet .25", "CounterTop DiningTable Fridge", _POT),
    "PepperShaker": _thing("kitchen", "Cabinet .45 Drawer .40", "CounterTop DiningTable Shelf"),
    "Plate": _thing("kitchen", "DiningTable .45 Cabinet .40", "CounterTop Fridge Shelf", _DISH),
    "Pot": _thing("kitchen", "StoveBurner .50 SinkBasin .35", "CounterTop Fridge Shelf", _POT),
    "Potato": _thing("kitchen", "SinkBasin .45 CounterTop .40", "DiningTable Fridge GarbageCan", _FOOD),
    "SaltShaker": _thing("kitchen", "Shelf .45 DiningTable .40", "Cabinet CounterTop Drawer"),
    "Spatula": _thing("kitchen", "Drawer .50 CounterTop .35", "DiningTable SinkBasin", "cleanable"),
    "Spoon": _thing("kitchen", "Drawer .55 SinkBasin .30", "CounterTop DiningTable", "cleanable"),
    "Tomato": _thing("kitchen", "CounterTop .50 Fridge .35", "DiningTable GarbageCan Microwave", _FOOD),
    "WineBottle": _thing("kitchen", "Fridge .50 Cabinet .35", "CounterTop DiningTable GarbageCan", "coolable"),
    "AlarmClock": _thing("bedroom", "SideTable .50 Desk .35", "Dresser Shelf"),
    "Book": _thing("bedroom", "Shelf .50 Bed .35", "Desk Drawer SideTable"),
    "CD": _thing("bedroom", "Drawer .45 Shelf .40", "Desk GarbageCan Safe"),
    "CellPhone": _thing("bedroom", "Bed .50 SideTable .35", "Desk Drawer Dresser"),
    "CreditCard": _thing("bedroom", "Dresser .45 Drawer .40", "Desk Safe Shelf"),
    "KeyChain": _thing("bedroom", "SideTable .45 Drawer .40", "Desk Dresser Safe"),
    "Laptop": _thing("bedroom", "Desk .50 Bed .35", "Dresser SideTable", "bulky"),
    "Pen": _thing("bedroom", "Desk .50 Drawer .35", "Dresser GarbageCan Shelf"),
    "Pencil": _thing("bedroom", "Shelf .45 Desk .40", "Drawer Dresser GarbageCan"),
    "Watch": _thing("bedroom", "Dresser .50 SideTable .35", "Desk Safe Shelf"),
    "Newspaper": _thing("living room", "CoffeeTable .45 ArmChair .40", "Drawer GarbageCan Sofa"),
    "Pillow": _thing("living room", "Sofa .50 ArmChair .35", "CoffeeTable Ottoman", "bulky"),
    "RemoteControl": _thing("living room", "Sofa .50 CoffeeTable .35", "Drawer SideTable TVStand"),
    "Statue": _thing("living room", "Shelf .45 TVStand .40", "CoffeeTable DiningTable SideTable", "bulky"),
    "TissueBox": _thing("living room", "SideTable .45 DiningTable .40", "CoffeeTable Drawer Shelf"),
    "Vase": _thing("living room", "DiningTable .45 Shelf .40", "CoffeeTable Dresser SideTable", "bulky"),
    "WateringCan": _thing("living room", "SideTable .50 TVStand .35", "CoffeeTable DiningTable Shelf", "bulky"),
    "Candle": _thing("bathroom", "CounterTop .45 Toilet .40", "Cabinet Drawer Shelf"),
    "Cloth": _thing("bathroom", "BathtubBasin .50 Cabinet .35", "CounterTop Drawer Toilet", "cleanable"),
    "HandTowel": _thing("bathroom", "HandTowelHolder .60 Cabinet .25", "CounterTop GarbageCan Shelf"),
    "SoapBar": _thing("bathroom", "SinkBasin .45 BathtubBasin .40", "Cabinet CounterTop Toilet", "cleanable"),
    "SoapBottle": _thing("bathroom", "CounterTop .50 Cabinet .35", "GarbageCan Shelf Toilet"),
    "SprayBottle": _thing("bathroom", "Cabinet .50 Toilet .35", "CounterTop GarbageCan Shelf"),
    "ToiletPaper": _thing("bathroom", "ToiletPaperHanger .45 Cabinet .40", "CounterTop Drawer Toilet"),
}


def fits(thing: str, place: str) -> bool:
    """Return True if a thing can be put into or onto a kind of place."""
    about = THINGS[thing]
    return (
        place in about.homes
        or place in about.destinations
        or place in SURFACES
        or (place in STORAGE and "bulky" not in about.traits)
        or any(place == appliance and f"{kind}able" in about.traits for kind, appliance in APPLIANCES.items())
    )


def things_for(kind: Kind) -> tuple[str, ...]:
    """Return the things that a task of this kind can be about."""
    if kind == "look":
        return tuple(name for name, thing in THINGS.items() if thing.room in LAMP_STANDS)
    return tuple(name for name, thing in THINGS.items() if kind not in APPLIANCES or f"{kind}able" in thing.traits)


def destinations_for(kind: Kind, thing: str) -> tuple[str, ...]:
    """Return the places where a task of this kind can want a thing; for `look`, the lamp."""
    about = THINGS[thing]
    if kind == "look":
        return (LAMP,)
    return tuple(place for place in about.destinations if place != APPLIANCES.get(kind))
