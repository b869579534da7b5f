"""Reader of ALFWorld's texts: the goal in the task sentence, what attempts have shown, and what a walkthrough says.

`share_of_subgoals` is graded progress. The subgoals follow from the task sentence, as in ALFRED (Shridhar et al., 2020,
section 3). For each thing wanted they are: take it; clean, heat or cool it, if the task says so; put it in its place.
For a thing to be looked at they are: take it; turn on the lamp; solve the task.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import retroformer.environments.alfworld.compact as compact
from retroformer.environments.alfworld.compact import type_of
from retroformer.errors import ConfigError
from retroformer.method.records import Lesson, Outcome, Step, Trajectory

APPLIANCES = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
"""Transform -> the type of place that does it."""

_TRANSFORMS = {"clean": "clean", "hot": "heat", "heat": "heat", "cool": "cool", "cold": "cool"}
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
    transform: str = ""
    """Required state change: clean, heat or cool."""
    lamp: str = ""
    """Lamp under which to look at the thing."""
    target: str = ""
    """Type of place to put the thing."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of things that the task needs, by kind."""
        return {kind: count for kind, count in ((self.thing, self.count), (self.lamp, 1)) if kind}

    @property
    def appliance(self) -> str:
        """Type of place that the transform needs."""
        return APPLIANCES.get(self.transform, "")


def read_goal(sentence: str) -> Goal:
    """Return the goal of a task sentence of ALFWorld's; an empty goal for any other sentence."""
    text = sentence.lower().strip().rstrip(".")
    if look := _LOOK.match(text):
        return Goal(thing=look["thing"], lamp=look["lamp"])
    if put := _PUT.match(text):
        transform = _TRANSFORMS.get((put["state"] or put["verb"] or "").strip(), "")
        return Goal(
            thing=put["thing"], count=2 if put["count"] == "two " else 1, transform=transform, target=put["target"]
        )
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
    transforms: set[tuple[str, str]] = field(default_factory=set)
    """State changes done, such as (clean, mug 1)."""
    refusals: set[str] = field(default_factory=set)
    """Actions that were answered with `Nothing happens.`"""

    def watch(self, action: str, answer: str) -> None:
        """Record one action and its answer, both in the compact text."""
        verb, _, rest = action.partition(" ")
        if answer == _REFUSAL:
            self.refusals.add(action)
        elif verb in ("go", "open", "examine"):
            self._look(rest.removeprefix("to "), answer)
        elif verb == "take" and answer.startswith("You pick up"):
            self.holding = rest.partition(" from ")[0]
            self.whereabouts.pop(self.holding, None)
        elif verb == "move" and answer.startswith("You move"):
            thing, _, place = rest.partition(" to ")
            self.whereabouts[thing], self.holding = place, ""
        elif verb in APPLIANCES and answer.startswith(f"You {verb}"):
            self.transforms.add((verb, rest.partition(" with ")[0]))

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


class Solution(NamedTuple):
    """One way to win; fields that a game does not need are empty."""

    things: tuple[tuple[str, str], ...]
    """Each thing that is taken or switched on, with its initial place."""
    appliance: str
    """Place where things are cleaned, heated or cooled."""
    target: str
    """Place where they are put."""


def read_solution(walkthrough: Sequence[str]) -> Solution:
    """Return the solution in these commands, in either grammar."""
    things, appliance, target, at = list[tuple[str, str]](), "", "", ""
    for action in map(compact.command, walkthrough):
        verb, _, rest = action.partition(" ")
        if verb == "go":
            at = rest.removeprefix("to ")
        elif verb == "take":
            thing, _, place = rest.partition(" from ")
            things.append((thing, place))
        elif verb == "use":
            things.append((rest, at))
        elif verb in APPLIANCES:
            appliance = rest.partition(" with ")[2]
        elif verb == "move":
            target = rest.partition(" to ")[2]
    return Solution(tuple(things), appliance, target)


@dataclass(frozen=True)
class AttemptView:
    """Goal of a game, its room, and what an attempt, or all attempts so far, have seen there."""

    goal: Goal
    order: tuple[str, ...]
    """Places, in the order of the room line."""
    room: RoomKnowledge

    def places_of(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """Return the initial places of the things of these kinds that were seen, each once."""
        return tuple(dict.fromkeys(place for kind in kinds for _, place in self._sightings(kind)))

    @property
    def needed(self) -> tuple[tuple[str, str], ...]:
        """Needed things that were seen, up to the number needed, each with the place where it was first seen."""
        return tuple(pair for kind, count in self.goal.counts.items() for pair in self._sightings(kind)[:count])

    @property
    def missing(self) -> tuple[str, ...]:
        """Kinds of things that the task needs and of which not enough were seen."""
        return tuple(kind for kind, count in self.goal.counts.items() if len(self._sightings(kind)) < count)

    @property
    def sees_all(self) -> bool:
        """True if everything that the task needs was seen."""
        return len(self.needed) == sum(self.goal.counts.values()) > 0

    @property
    def is_solved_at_first(self) -> bool:
        """True if the things lay at their target before the first action, so that no game has this goal here."""
        served = [place for _, place in self._sightings(self.goal.thing) if type_of(place) == self.goal.target]
        return not self.goal.transform and len(served) >= self.goal.count

    @property
    def searched(self) -> tuple[str, ...]:
        """Places that were looked into, in room order."""
        return tuple(place for place in self.order if place in self.room.contents)

    @property
    def unsearched(self) -> tuple[str, ...]:
        """Places that were not looked into, in room order."""
        return tuple(place for place in self.order if place not in self.room.contents)

    def next_places(self, advised: Collection[str] = ()) -> tuple[str, ...]:
        """Return the unsearched places in room order, starting after the last place searched or advised."""
        reached = [index for index, place in enumerate(self.order) if place in advised or place in self.room.contents]
        start = reached[-1] + 1 if reached else 0
        onwards = (*self.order[start:], *self.order[:start])
        return tuple(place for place in onwards if place not in self.room.contents)

    def _sightings(self, kind: str) -> list[tuple[str, str]]:
        return [(thing, place) for thing, place in self.room.first_seen.items() if type_of(thing) == kind]


def view_of(attempt: Trajectory, earlier: Sequence[Lesson] = ()) -> AttemptView:
    """Return what the text of an attempt shows of its game, and what the attempts before it, oldest first, add.

    Things are where the earliest attempt first saw them, since every attempt begins in the same room. An attempt
    outside ALFWorld has no places and no goal.
    """
    sentence, places = compact.read_opening(attempt.opening)
    room = read_steps(attempt.steps)
    for lesson in reversed(earlier):
        before = read_steps(lesson.attempt.steps)
        room.contents |= {place: things for place, things in before.contents.items() if place not in room.contents}
        room.first_seen = before.first_seen | room.first_seen
    return AttemptView(read_goal(sentence), compact.room_order(attempt.task, places), room)


_LIT = "You turn on the "


def share_of_subgoals(attempt: Trajectory) -> float:
    """Return the share of the task's subgoals that the attempt reached: 1 if it is solved, else less.

    Taking and changing a thing count if they happened at any time; a thing counts as put if it lies in its place at the
    end, and as taken, too, if it lay there already. Raises ConfigError.
    """
    if attempt.outcome is Outcome.SUCCESS:
        return 1.0
    goal = read_goal(compact.read_opening(attempt.opening).task)
    if not goal.thing:
        raise ConfigError(
            f"train.rated_by=shaped: the opening of the stored attempt at {attempt.task.id!r} names no goal of "
            "ALFWorld's, so its progress cannot be read; take train.rated_by=success."
        )
    total = 3 if goal.lamp else goal.count * (3 if goal.transform else 2)
    return min(_reached(attempt, goal), total - 1) / total


def _reached(attempt: Trajectory, goal: Goal) -> int:
    """Return the number of subgoals reached; a third one of a lamp is left to success."""
    room, taken, lit = RoomKnowledge(), set[str](), False
    for step in attempt.steps:
        action = compact.command(step.action)
        answer = compact.observation(action, step.observation)
        room.watch(action, answer)
        if type_of(room.holding) == goal.thing:
            taken.add(room.holding)
        lit = lit or (answer.startswith(_LIT) and type_of(answer.removeprefix(_LIT).rstrip(".")) == goal.lamp)
    if goal.lamp:
        return bool(taken) + lit
    changed = {
        thing for transform, thing in room.transforms if transform == goal.transform and type_of(thing) == goal.thing
    }
    put = {
        thing
        for thing, place in room.whereabouts.items()
        if type_of(thing) == goal.thing and type_of(place) == goal.target and (not goal.transform or thing in changed)
    }
    return sum(min(len(things), goal.count) for things in (taken | put, changed if goal.transform else (), put))
