"""Advice written by rule: baselines for reflectors, their warm-start data, and an upper bound.

All but one know only what the actor saw. `RuleReflector` writes the best advice it can. `MixedReflector` writes short
sentences in the right form, mostly of little use, so that a model learns the form of advice here and must learn from
ratings which advice helps. `UsefulReflector` says what was seen, else a few unsearched places, drawn at random and in
any order: it uses no knowledge of where things usually are, and leaves every choice open. `OracleReflector` reads the
solution: an upper bound on what advice can do for this actor, not a competitor.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Literal

import retroformer.environments.alfworld.compact as compact
from retroformer.agents.baseline import PHRASES
from retroformer.environments.alfworld.compact import type_of
from retroformer.environments.alfworld.reader import read_advice
from retroformer.environments.alfworld.reading import Goal, RoomKnowledge, read_attempts, read_goal, read_solution
from retroformer.environments.alfworld.wording import PLAIN, Manner, Voice, voice
from retroformer.prompts import Render
from retroformer.records import Author, Lesson, Memory, Reflection, Sampling, Task, Trajectory


@dataclass(frozen=True)
class FailureView:
    """Goal of a game, its room, and what a failed attempt, or all attempts so far, have seen there."""

    goal: Goal
    order: tuple[str, ...]
    """Places, in the order of the room line."""
    room: RoomKnowledge

    @property
    def needed(self) -> tuple[tuple[str, str], ...]:
        """Needed things that were seen, up to the number needed, each with the place where it was first seen."""
        wanted = ((self.goal.thing, self.goal.count), (self.goal.lamp, 1))
        return tuple(pair for kind, count in wanted if kind for pair in self._sightings(kind)[:count])

    @property
    def sees_all(self) -> bool:
        """True if everything that the task needs was seen."""
        return len(self.needed) == self.goal.count + bool(self.goal.lamp)

    @property
    def is_solved_at_first(self) -> bool:
        """True if the things lay at their target before the first action, so that no game has this goal here."""
        served = [place for _, place in self._sightings(self.goal.thing) if compact.type_of(place) == self.goal.target]
        return not self.goal.deed and len(served) >= self.goal.count

    @property
    def missing(self) -> tuple[str, ...]:
        """Kinds of things that the task needs and of which not enough were seen."""
        wanted = ((self.goal.thing, self.goal.count), (self.goal.lamp, 1))
        return tuple(kind for kind, count in wanted if kind and len(self._sightings(kind)) < count)

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
        return [(thing, place) for thing, place in self.room.first_seen.items() if compact.type_of(thing) == kind]


def view_of(failure: Trajectory, earlier: Sequence[Lesson] = ()) -> FailureView:
    """Return the view that the text of a failure gives, and of the attempts before it, oldest first."""
    sentence, places = compact.read_opening(failure.opening)
    room = read_attempts([*(lesson.attempt for lesson in earlier), failure])
    return FailureView(read_goal(sentence), compact.room_order(failure.task, places), room)


MixedKind = Literal["unvisited", "visited", "seen", "empty"]

MIXTURE: Mapping[MixedKind, float] = MappingProxyType({"unvisited": 0.35, "visited": 0.25, "seen": 0.25, "empty": 0.15})
"""Shares of the kinds of warm-start advice.

unvisited: look in one to three places, drawn from those not looked into.
visited: look in one to three places, drawn from those already looked into, so useless.
seen: where a thing of the task was seen; if none was seen, one to three places drawn from the whole room.
empty: a phrase with no content.
"""

MIXED_PLACES = 3
"""Maximum number of places that one piece of mixed advice names."""

EMPTY_PHRASES = PHRASES[:5]
"""Phrases that the mixture draws from."""

NEXT_PLACES = 6
"""Maximum number of places that one piece of rule advice names, if the arm sets no other."""


class RuleReflector:
    """Reflector that says where the task's things were seen, and where to search for those not seen.

    It reads the last attempt, or with `reads_history` all of them, and names at most this many places.
    """

    def __init__(
        self,
        render: Render,
        manner: Manner = "demonstrated",
        *,
        reads_history: bool = False,
        places: int = NEXT_PLACES,
    ) -> None:
        self._render = render
        self._manner: Manner = manner
        self._reads_history, self._places = reads_history, places

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice, empty if every place was searched in vain. The seed only draws unseen sentences."""
        view = view_of(trajectory, memory.earlier if self._reads_history else ())
        text = advice_by_rule(view, memory, voice(self._manner, trajectory.task, seed), self._places)
        name = "next-places-of-all" if self._reads_history else "next-places"
        return signed(name, text, self._render, trajectory, memory, seed)


class MixedReflector:
    """Reflector that draws advice of mixed usefulness."""

    def __init__(
        self, render: Render, mixture: Mapping[MixedKind, float] = MIXTURE, *, reads_history: bool = False
    ) -> None:
        self._render = render
        self.mixture = mixture
        self._reads_history = reads_history

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice drawn by seed and task; the same inputs give the same advice."""
        random = Random(f"{seed}/{trajectory.task.split}/{trajectory.task.id}/{len(memory.reflections)}")
        kind = random.choices(tuple(self.mixture), tuple(self.mixture.values()))[0]
        text = mixed_advice(view_of(trajectory, memory.earlier if self._reads_history else ()), kind, random)
        return signed("mixed", text, self._render, trajectory, memory, seed)


def advice_by_rule(view: FailureView, memory: Memory, speaker: Voice = PLAIN, places: int = NEXT_PLACES) -> str:
    """Return advice on the next places that no advice in memory has named."""
    advised = {place for text in memory.reflections for place in read_advice([text], view.order, view.goal).first}
    return advice_on_places(view, view.next_places(advised)[:places], speaker)


def advice_on_places(view: FailureView, places: Sequence[str], speaker: Voice = PLAIN) -> str:
    """Return `The mug 1 is in shelf 2.`, `Look in drawer 3-4 and shelf 1.`, or both."""
    sentences = [speaker.seen(thing, place) for thing, place in view.needed]
    if not view.sees_all and places:
        sentences.append(speaker.search(places, view.goal.thing))
    return " ".join(sentences)


def mixed_advice(view: FailureView, kind: MixedKind, random: Random) -> str:
    """Return one or two short sentences of this kind, or of the nearest kind that the failure allows."""
    if kind == "seen" and view.needed:
        return " ".join(PLAIN.seen(thing, place) for thing, place in view.needed)
    places = {"unvisited": view.unsearched, "visited": view.searched}
    choice = places.get(kind) or view.order
    if kind == "empty" or not choice:
        return random.choice(EMPTY_PHRASES)
    drawn = random.sample(choice, min(len(choice), random.randint(1, MIXED_PLACES)))
    named = tuple(place for place in view.order if place in drawn)
    return PLAIN.search(named, view.goal.thing)


def signed(rule: str, text: str, render: Render, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
    """Return a reflection that records the author, the rule, and the prompt that a model would have read."""
    return Reflection(
        text=text,
        prompt=render(trajectory, memory),
        author=Author(endpoint="rule", model=rule),
        sampling=Sampling(seed=seed),
    )


USEFUL_TYPES = (2, 4)
"""Minimum and maximum number of types of place that one piece of advice names."""
PLACES_PER_TYPE = (1, 3)
"""Minimum and maximum number of places per type."""


class UsefulReflector:
    """Reflector that draws useful advice."""

    def __init__(self, render: Render, *, reads_history: bool = False) -> None:
        self._render = render
        self._reads_history = reads_history

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice drawn by seed and task; the same inputs give the same advice."""
        random = Random(f"{seed}/{trajectory.task.split}/{trajectory.task.id}/{len(memory.reflections)}")
        text = useful_advice(view_of(trajectory, memory.earlier if self._reads_history else ()), random)
        return signed("useful", text, self._render, trajectory, memory, seed)


def useful_advice(view: FailureView, random: Random) -> str:
    """Return `The mug 1 is in shelf 2.`, `Look in shelf 1-2, desk 1 and bed 1.` with unsearched places, or both."""
    sentences = [PLAIN.seen(thing, place) for thing, place in view.needed]
    if (left := view.unsearched) and not view.sees_all:
        kinds = list(dict.fromkeys(map(type_of, left)))
        drawn = random.sample(kinds, min(len(kinds), random.randint(*USEFUL_TYPES)))
        places = [
            place
            for kind in drawn
            for place in [spot for spot in left if type_of(spot) == kind][: random.randint(*PLACES_PER_TYPE)]
        ]
        sentences.append(PLAIN.search(places, view.goal.thing))
    return " ".join(sentences) or random.choice(PHRASES)


class OracleReflector:
    """Reflector that says where the needed things are, where to clean, heat or cool them, and where to put them."""

    def __init__(
        self, render: Render, walkthrough: Callable[[Task], Sequence[str]], manner: Manner = "demonstrated"
    ) -> None:
        self._render, self._walkthrough = render, walkthrough
        self._manner: Manner = manner

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return the same content for every failure. Raises EnvironmentFailure if the game cannot be opened."""
        walkthrough = self._walkthrough(trajectory.task)
        text = advice_from_solution(trajectory, walkthrough, voice(self._manner, trajectory.task, seed))
        return signed("walkthrough", text, self._render, trajectory, memory, seed)


def advice_from_solution(failure: Trajectory, walkthrough: Sequence[str], speaker: Voice = PLAIN) -> str:
    """Return advice such as `The mug 1 is in shelf 2. Then clean it with sinkbasin 1. Put it in countertop 1.`."""
    solution, goal = read_solution(walkthrough), read_goal(compact.read_opening(failure.opening).task)
    # A walkthrough may take the same thing twice; an attempt needs the place where it lay first.
    first: dict[str, str] = {}
    for thing, place in solution.things:
        first.setdefault(thing, place)
    sentences = [speaker.seen(thing, place) for thing, place in first.items()]
    if solution.appliance:
        sentences.append(speaker.deed(goal.deed, solution.appliance))
    if solution.target:
        sentences.append(speaker.target(solution.target))
    return " ".join(sentences)
