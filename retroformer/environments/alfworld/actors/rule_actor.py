"""Rule-based ALFWorld player: no model, no randomness, no access beyond the text.

It searches the places in the order of the room line (types in a seeded order, numbers ascending), takes the thing when
it sees it, uses the appliance, and puts the thing where the task says. That order is naive on purpose: within a small
limit of actions it fails often, and only advice changes the outcome. It reads the advice in its memory as plain text
(`retroformer.environments.alfworld.advice.reader`): places named there come first, places ruled out come last. Without
advice a retry repeats the previous trial action by action.
"""

from dataclasses import dataclass

from retroformer.environments.alfworld.advice.reader import Advice, read_advice
from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import Goal, RoomKnowledge, read_goal, read_steps
from retroformer.protocols import Move, Scene

_GIVE_UP = "look"
"""Action when nothing is left to try; the loop ends a trial that repeats itself."""


class RuleActor:
    """Actor that plays by rule; a pure function of the scene."""

    def __init__(self, grammar: compact.Grammar = "move") -> None:
        self.grammar: compact.Grammar = grammar
        """Grammar to use if the choices of a scene do not show it."""

    async def act(self, scene: Scene) -> Move:
        """Return the next action. Never raises; in a world other than ALFWorld it can only look."""
        task, places = compact.read_opening(scene.opening)
        order = compact.room_order(scene.task, places)
        goal = read_goal(task)
        advice = read_advice(scene.memory.reflections, order, goal)
        turn = Turn(goal, order, read_steps(scene.steps), advice, scene.choices)
        return Move(action=compact.spoken(turn.action(), compact.heard_grammar(scene.choices, self.grammar)))


@dataclass(frozen=True)
class Turn:
    """One decision, from the goal, the search order, the attempt so far, the advice and the possible actions."""

    goal: Goal
    order: tuple[str, ...]
    room: RoomKnowledge
    advice: Advice
    choices: tuple[str, ...]

    def action(self) -> str:
        """Return the next action in the compact text."""
        if not self.room.holding:
            return self._fetch()
        if self.goal.lamp:
            return self._use_lamp()
        if self.goal.deed and (self.goal.deed, self.room.holding) not in self.room.deeds:
            return self._do_deed()
        return self._deliver()

    def _fetch(self) -> str:
        wanted = [thing for thing in self.room.whereabouts if self._is_wanted(thing)]
        if not wanted:
            return self._search(self.goal.thing)
        here = [thing for thing in wanted if self.room.whereabouts[thing] == self.room.at]
        thing = (here or wanted)[0]
        place = self.room.whereabouts[thing]
        return self._approach(place) or f"take {thing} from {place}"

    def _is_wanted(self, thing: str) -> bool:
        if compact.type_of(thing) != self.goal.thing:
            return False
        finished = not self.goal.deed or (self.goal.deed, thing) in self.room.deeds
        return not (finished and self.room.whereabouts[thing] == self._target())

    def _use_lamp(self) -> str:
        for thing, place in self.room.whereabouts.items():
            if compact.type_of(thing) == self.goal.lamp:
                return self._approach(place) or f"use {thing}"
        return self._search(self.goal.lamp)

    def _do_deed(self) -> str:
        appliance = self._first_of(self.goal.appliance, self.advice.appliances)
        if not appliance:
            return _GIVE_UP
        deed = f"{self.goal.deed} {self.room.holding} with {appliance}"
        # Heating, cooling and cleaning work at a closed appliance, so it is not opened first.
        return deed if self.room.at == appliance or deed in self.choices else self._walk(appliance)

    def _deliver(self) -> str:
        target = self._target()
        if not target:
            return _GIVE_UP
        return self._approach(target) or f"move {self.room.holding} to {target}"

    def _target(self) -> str:
        """Return the first fitting place: where a thing was put, as advised, where one of two lay, then in order."""
        things = [thing for thing in self.room.whereabouts if compact.type_of(thing) == self.goal.thing]
        places = {thing: self.room.whereabouts[thing] for thing in things}
        served = [place for thing, place in places.items() if place != self.room.first_seen.get(thing)]
        lying = places.values() if self.goal.count == 2 else ()
        return self._first_of(self.goal.target, (*served, *self.advice.targets, *lying))

    def _first_of(self, kind: str, preferred: tuple[str, ...]) -> str:
        return next((place for place in (*preferred, *self.order) if compact.type_of(place) == kind), "")

    def _search(self, kind: str) -> str:
        """Return an action towards the next unsearched place: sighted, advised, in room order, then skipped ones."""
        reported = self.advice.sightings.get(kind, ())
        rest = [place for place in self.order if place not in self.advice.skip]
        for place in (*reported, *self.advice.first, *rest, *self.order):
            if place not in self.room.contents and not self._unreachable(place):
                return self._approach(place) or f"examine {place}"
        return _GIVE_UP

    def _approach(self, place: str) -> str:
        """Return the next action on the way to standing at the open place; empty if there."""
        if self.room.at != place:
            return self._walk(place)
        return f"open {place}" if place in self.room.shut else ""

    def _walk(self, place: str) -> str:
        """Return the action that goes there, or one that acts on it from a place on the same spot."""
        go = f"go to {place}"
        if go not in self.room.refusals and (not self.choices or go in self.choices):
            return go
        opening = f"open {place}"
        can_open = opening in self.choices if self.choices else opening not in self.room.refusals
        return opening if can_open and place not in self.room.contents else f"examine {place}"

    def _unreachable(self, place: str) -> bool:
        return f"go to {place}" in self.room.refusals and f"examine {place}" in self.room.refusals
