"""Players of ALFWorld: a small language model trained on the compact text, and a program."""

from dataclasses import dataclass
from typing import Literal

from retroformer.endpoint.model import LanguageModel
from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.advice_reader import PlaceAdvice, read_advice
from retroformer.environments.alfworld.attempt_reader import Goal, RoomKnowledge, read_goal, read_steps
from retroformer.method.protocols import Move, OfferedActions, Scene

ACTION_TOKENS = 20
"""Token limit of an action, longer than the longest action in training."""
Choice = Literal["free", "admissible"]
_NEVER_OFFERED = frozenset({"look", "inventory", "help", "close", "slice"})
"""First words of commands that no ALFWorld task needs."""

_GIVE_UP = "look"
"""Action if the model writes an empty line, or nothing is left to try; the loop ends a trial that repeats itself."""


class HouseholdActor:
    """Small language model, trained to play on the compact text and to follow a line of advice.

    It continues plain text, so its endpoint must serve completions, not chat. With `free` it may write anything, and
    the environment answers meaningless actions. With `admissible` it chooses among the actions possible now, which only
    the experiment's own server can enforce.
    """

    def __init__(
        self, model: LanguageModel, temperature: float = 0.0, grammar: compact.Grammar = "move", choice: Choice = "free"
    ) -> None:
        self.model, self.temperature, self.choice = model, temperature, choice
        self.grammar: compact.Grammar = grammar

    async def act(self, scene: Scene) -> Move:
        """Return the next action, in the grammar of the environment. Raises EndpointFailure."""
        completion = await self.model.complete(
            household_prompt(scene),
            temperature=self.temperature,
            max_new_tokens=ACTION_TOKENS,
            stop=["\n"],
            seed=scene.seed if self.temperature else None,
            choices=[_continuation(command) for command in offered(scene)] if self.choice == "admissible" else None,
        )
        lines = (line.strip().removeprefix(">").strip() for line in completion.text.split("\n"))
        action = next(filter(None, lines), _GIVE_UP)
        return Move(action=compact.in_grammar(action, self.grammar), usage=completion.usage)


def household_prompt(scene: Scene) -> str:
    """Return the attempt so far in the compact text, ending with `>`; the model adds ` ACTION` and a newline."""
    lines = [compact.header(scene.task, scene.opening, scene.memory.reflections)]
    for step in scene.steps:
        action = compact.command(step.action)
        lines.append(f"> {action}\n{compact.observation(action, step.observation)}\n")
    return f"{''.join(lines)}>"


def offered_actions(scene: Scene, grammar: compact.Grammar) -> OfferedActions:
    """Return what an admissible actor may choose among, as texts of its model and in the grammar of the environment."""
    commands = offered(scene)
    return OfferedActions(
        household_prompt(scene),
        tuple(_continuation(command) for command in commands),
        tuple(compact.in_grammar(command, grammar) for command in commands),
    )


def offered(scene: Scene) -> tuple[str, ...]:
    """Return what an admissible actor may choose among, in the compact text and in alphabetical order.

    These are the possible actions except looking around, inventory, help, closing and slicing, and except examining
    things. Places can be examined: a place that shares its spot with another cannot be gone to from there. `go to` is
    offered for every place of the room, even if it is not possible now.
    """
    places = compact.read_opening(scene.opening).places
    commands = {f"go to {place}" for place in places}
    for command in map(compact.command, scene.choices):
        verb, _, thing = command.partition(" ")
        if thing in places if verb == "examine" else verb not in _NEVER_OFFERED:
            commands.add(command)
    return tuple(sorted(commands))


def _continuation(command: str) -> str:
    return f" {command}\n"


class RuleActor:
    """Actor that plays by rule: no model, no randomness, no access beyond the text.

    It searches the places in the order of the room line (types in a seeded order, numbers ascending), takes the thing
    when it sees it, uses the appliance, and puts the thing where the task says. That order is naive on purpose: within
    a small limit of actions it fails often, and only advice changes the outcome. It reads the advice in its memory
    (`advice_reader.py`): places named there come first, places ruled out come last. Without advice a retry repeats the
    previous trial action by action.
    """

    def __init__(self, grammar: compact.Grammar = "move") -> None:
        self.grammar: compact.Grammar = grammar

    async def act(self, scene: Scene) -> Move:
        """Return the next action. Never raises; in a world other than ALFWorld it can only look."""
        task, places = compact.read_opening(scene.opening)
        goal, order = read_goal(task), compact.room_order(scene.task, places)
        advice = read_advice(scene.memory.reflections, order, goal)
        decision = RuleDecision(goal, order, read_steps(scene.steps), advice, scene.choices)
        return Move(action=compact.in_grammar(decision.action(), self.grammar))


@dataclass(frozen=True)
class RuleDecision:
    """One decision, from the goal, the search order, the attempt so far, the advice and the possible actions."""

    goal: Goal
    order: tuple[str, ...]
    room: RoomKnowledge
    advice: PlaceAdvice
    choices: tuple[str, ...]

    def action(self) -> str:
        """Return the next action in the compact text."""
        if not self.room.holding:
            return self._fetch()
        if self.goal.lamp:
            for lamp, place in self._known(self.goal.lamp):
                return self._approach(place) or f"use {lamp}"
            return self._search(self.goal.lamp)
        if self.goal.transform and (self.goal.transform, self.room.holding) not in self.room.transforms:
            return self._transform()
        target = self._target()
        if not target:
            return _GIVE_UP
        return self._approach(target) or f"move {self.room.holding} to {target}"

    def _fetch(self) -> str:
        target, wanted = self._target(), list[tuple[str, str]]()
        for thing, place in self._known(self.goal.thing):
            finished = not self.goal.transform or (self.goal.transform, thing) in self.room.transforms
            if not (finished and place == target):
                wanted.append((thing, place))
        if not wanted:
            return self._search(self.goal.thing)
        thing, place = next((pair for pair in wanted if pair[1] == self.room.at), wanted[0])
        return self._approach(place) or f"take {thing} from {place}"

    def _transform(self) -> str:
        appliance = self._first_of(self.goal.appliance, self.advice.appliances)
        if not appliance:
            return _GIVE_UP
        transform = f"{self.goal.transform} {self.room.holding} with {appliance}"
        # Heating, cooling and cleaning work at a closed appliance, so it is not opened first.
        return transform if self.room.at == appliance or transform in self.choices else self._walk(appliance)

    def _target(self) -> str:
        """Return the first fitting place: where a thing was put, as advised, where one of two lay, then in order."""
        things = self._known(self.goal.thing)
        moved = [place for thing, place in things if place != self.room.first_seen.get(thing)]
        lying = [place for _, place in things] if self.goal.count == 2 else []
        return self._first_of(self.goal.target, (*moved, *self.advice.targets, *lying))

    def _known(self, kind: str) -> list[tuple[str, str]]:
        """Return the things of a kind that are not in hand, each with its place, as far as known."""
        return [(thing, place) for thing, place in self.room.whereabouts.items() if compact.type_of(thing) == kind]

    def _first_of(self, kind: str, preferred: tuple[str, ...]) -> str:
        return next((place for place in (*preferred, *self.order) if compact.type_of(place) == kind), "")

    def _search(self, kind: str) -> str:
        """Return an action towards the next unsearched place: sighted, advised, in room order, then skipped ones."""
        reported = self.advice.sightings.get(kind, ())
        rest = [place for place in self.order if place not in self.advice.skip]
        for place in (*reported, *self.advice.first, *rest, *self.order):
            is_unreachable = {f"go to {place}", f"examine {place}"} <= self.room.refusals
            if place not in self.room.contents and not is_unreachable:
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
