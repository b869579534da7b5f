"""Reader of ALFWorld's texts: the goal in the task sentence, and what the steps so far have shown."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from retroformer.environments.alfworld.text import compact
from retroformer.records import Step, Trajectory

APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""Deed -> the type of place that does it."""

_DEEDS = {"clean": "clean", "hot": "heat", "heat": "heat", "cool": "cool", "cold": "cool"}
_LOOK = re.compile(
    r"(?:look at|examine) (?:the |an? |some )?(?P<thing>\w+) (?:under|with|using) (?:the |an? )?(?P<lamp>\w+)"
)
_PUT = re.compile(
    r"(?:(?P<verb>clean|heat|cool|find) )?(?:put )?(?P<count>two |an? |some |the )?(?P<state>clean |hot |cool |cold )?"
    r"(?P<thing>\w+)(?: and put (?:it|them))? (?:in|on|in/on) (?:the |an? )?(?P<target>\w+)$"
)
_THING = re.compile(r"\w+ \d+$")
_REFUSAL = "Nothing happens."


@dataclass(frozen=True)
class Goal:
    """Parsed task sentence. All names are types; fields that a task does not ask for are empty."""

    thing: str = ""
    count: int = 1
    deed: str = ""
    """Required state change: clean, heat or cool."""
    lamp: str = ""
    """Lamp under which to look at the thing."""
    target: str = ""
    """Type of place to put the thing."""

    @property
    def appliance(self) -> str:
        """Type of place that the deed needs."""
        return APPLIANCES.get(self.deed, "")


def read_goal(sentence: str) -> Goal:
    """Return the goal of a task sentence of ALFWorld's; an empty goal for any other sentence."""
    text = sentence.lower().strip().rstrip(".")
    if look := _LOOK.match(text):
        return Goal(thing=look["thing"], lamp=look["lamp"])
    if put := _PUT.match(text):
        deed = _DEEDS.get((put["state"] or put["verb"] or "").strip(), "")
        return Goal(thing=put["thing"], count=2 if put["count"] == "two " else 1, deed=deed, target=put["target"])
    return Goal()


@dataclass
class RoomKnowledge:
    """Knowledge an attempt has gained so far from the environment's answers alone."""

    at: str = ""
    """Place where the agent stands; empty in the middle of the room."""
    holding: str = ""
    contents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Content of each place when last looked into, in the order of the first looks."""
    shut: set[str] = field(default_factory=set)
    first_seen: dict[str, str] = field(default_factory=dict)
    """Initial place of each thing."""
    whereabouts: dict[str, str] = field(default_factory=dict)
    """Current place of each thing, as far as known, except the thing in hand."""
    deeds: set[tuple[str, str]] = field(default_factory=set)
    """State changes done, such as (clean, mug 1)."""
    refusals: dict[str, int] = field(default_factory=dict)
    """Number of times each action was answered with `Nothing happens.`"""

    def watch(self, action: str, answer: str) -> None:
        """Record one action and its answer, both in the compact text."""
        verb, _, rest = action.partition(" ")
        if answer == _REFUSAL:
            self.refusals[action] = self.refusals.get(action, 0) + 1
        elif verb in ("go", "open", "examine"):
            self._look(rest.removeprefix("to "), answer)
        elif verb == "take" and answer.startswith("You pick up"):
            self.holding = rest.partition(" from ")[0]
            self.whereabouts.pop(self.holding, None)
        elif verb == "move" and answer.startswith("You move"):
            thing, _, place = rest.partition(" to ")
            self.whereabouts[thing], self.holding = place, ""
        elif verb in APPLIANCES and answer.startswith(f"You {verb}"):
            self.deeds.add((verb, rest.partition(" with ")[0]))

    def _look(self, place: str, answer: str) -> None:
        things = tuple(answer.split(", ")) if answer != "nothing" else ()
        if answer == "closed":
            self.at = place
            self.shut.add(place)
        elif all(_THING.match(thing) for thing in things):
            self.at = place
            self.shut.discard(place)
            self.contents[place] = things
            for gone in [thing for thing, where in self.whereabouts.items() if where == place]:
                del self.whereabouts[gone]
            for thing in things:
                self.first_seen.setdefault(thing, place)
                self.whereabouts[thing] = place


def read_steps(steps: Sequence[Step]) -> RoomKnowledge:
    """Return what these steps have shown, in either grammar."""
    room = RoomKnowledge()
    for step in steps:
        action = compact.command(step.action)
        room.watch(action, compact.observation(action, step.observation))
    return room


def read_attempts(attempts: Sequence[Trajectory]) -> RoomKnowledge:
    """Return what the last of these attempts, given oldest first, has shown of its room, and what the others add.

    Things are where the earliest attempt first saw them, since every attempt begins in the same room.
    """
    *earlier, last = attempts
    room = read_steps(last.steps)
    for before in (read_steps(attempt.steps) for attempt in reversed(earlier)):
        room.contents = room.contents | {
            place: things for place, things in before.contents.items() if place not in room.contents
        }
        room.first_seen = before.first_seen | room.first_seen
    return room
