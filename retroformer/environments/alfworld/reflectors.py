"""Advice written by rule: baselines for reflectors, their warm-start data, and an upper bound.

All but one know only what the actor saw. `rule_reflector` writes the best advice it can. `mixed_reflector` writes short
sentences in the right form, mostly of little use, so that a model learns the form of advice here and must learn from
ratings which advice helps. `useful_reflector` says what was seen, else a few unsearched places, drawn at random and in
any order: it uses no knowledge of where things usually are, and leaves every choice open. `oracle_reflector` reads the
solution: an upper bound on what advice can do for this actor, not a competitor.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Literal

import retroformer.environments.alfworld.compact as compact
from retroformer.agents.arms.baselines import PHRASES
from retroformer.environments.alfworld.compact import type_of
from retroformer.environments.alfworld.reader import read_advice
from retroformer.environments.alfworld.reading import Goal, RoomKnowledge, read_attempts, read_goal, read_solution
from retroformer.environments.alfworld.wording import PLAIN, AdvicePhrases, Manner, phrases_for
from retroformer.method.prompts import Render
from retroformer.method.records import Author, Lesson, Memory, Reflection, Sampling, Task, Trajectory


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
        return tuple(pair for kind, count in self._wanted for pair in self._sightings(kind)[:count])

    @property
    def sees_all(self) -> bool:
        """True if everything that the task needs was seen."""
        return len(self.needed) == self.goal.count + bool(self.goal.lamp)

    @property
    def is_solved_at_first(self) -> bool:
        """True if the things lay at their target before the first action, so that no game has this goal here."""
        served = [place for _, place in self._sightings(self.goal.thing) if compact.type_of(place) == self.goal.target]
        return not self.goal.transform and len(served) >= self.goal.count

    @property
    def missing(self) -> tuple[str, ...]:
        """Kinds of things that the task needs and of which not enough were seen."""
        return tuple(kind for kind, count in self._wanted if len(self._sightings(kind)) < count)

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

    @property
    def _wanted(self) -> list[tuple[str, int]]:
        wanted = ((self.goal.thing, self.goal.count), (self.goal.lamp, 1))
        return [(kind, count) for kind, count in wanted if kind]

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

MIXED_PLACES, NEXT_PLACES = 3, 6
"""Maximum number of places that one piece of mixed advice names, and one of rule advice if the arm sets no other."""
EMPTY_PHRASES = PHRASES[:5]
"""Phrases that the mixture draws from."""
USEFUL_TYPES, PLACES_PER_TYPE = (2, 4), (1, 3)
"""Minimum and maximum number of types of place that one piece of useful advice names, and of places per type."""


class WrittenReflector:
    """Reflector whose advice a function writes, given a failure, the memory and a seed.

    A reflection names the rule as its author, and has the prompt that a model would have read.
    """

    def __init__(self, rule: str, render: Render, write: Callable[[Trajectory, Memory, int], str]) -> None:
        self._rule, self._render, self._write = rule, render, write

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice; the same inputs give the same advice. Raises EnvironmentFailure if `write` does."""
        return Reflection(
            text=self._write(trajectory, memory, seed),
            prompt=self._render(trajectory, memory),
            author=Author(endpoint="rule", model=self._rule),
            sampling=Sampling(seed=seed),
        )


def rule_reflector(
    render: Render, manner: Manner = "demonstrated", *, reads_history: bool = False, places: int = NEXT_PLACES
) -> WrittenReflector:
    """Return a reflector that says where the task's things were seen, and where to search for those not seen.

    It reads the last attempt, or with `reads_history` all of them, and names at most this many places. The advice is
    empty if every place was searched in vain. The seed only draws unseen sentences.
    """

    def write(trajectory: Trajectory, memory: Memory, seed: int) -> str:
        view = view_of(trajectory, memory.earlier if reads_history else ())
        return advice_by_rule(view, memory, phrases_for(manner, trajectory.task, seed), places)

    return WrittenReflector("next-places-of-all" if reads_history else "next-places", render, write)


def mixed_reflector(
    render: Render, mixture: Mapping[MixedKind, float] = MIXTURE, *, reads_history: bool = False
) -> WrittenReflector:
    """Return a reflector that draws advice of mixed usefulness by seed and task."""

    def write(trajectory: Trajectory, memory: Memory, seed: int) -> str:
        random = _random(trajectory, memory, seed)
        kind = random.choices(tuple(mixture), tuple(mixture.values()))[0]
        return mixed_advice(view_of(trajectory, memory.earlier if reads_history else ()), kind, random)

    return WrittenReflector("mixed", render, write)


def useful_reflector(render: Render, *, reads_history: bool = False) -> WrittenReflector:
    """Return a reflector that draws useful advice by seed and task."""

    def write(trajectory: Trajectory, memory: Memory, seed: int) -> str:
        view = view_of(trajectory, memory.earlier if reads_history else ())
        return useful_advice(view, _random(trajectory, memory, seed))

    return WrittenReflector("useful", render, write)


def oracle_reflector(render: Render, walkthrough: Callable[[Task], Sequence[str]]) -> WrittenReflector:
    """Return a reflector that says where the needed things are, where to transform them, and where to put them."""

    def write(trajectory: Trajectory, memory: Memory, seed: int) -> str:
        return advice_from_solution(trajectory, walkthrough(trajectory.task))

    return WrittenReflector("walkthrough", render, write)


def _random(trajectory: Trajectory, memory: Memory, seed: int) -> Random:
    return Random(f"{seed}/{trajectory.task.split}/{trajectory.task.id}/{len(memory.reflections)}")


def advice_by_rule(view: FailureView, memory: Memory, phrases: AdvicePhrases = PLAIN, places: int = NEXT_PLACES) -> str:
    """Return advice on the next places that no advice in memory has named."""
    advised = {place for text in memory.reflections for place in read_advice([text], view.order, view.goal).first}
    return advice_on_places(view, view.next_places(advised)[:places], phrases)


def advice_on_places(view: FailureView, places: Sequence[str], phrases: AdvicePhrases = PLAIN) -> str:
    """Return `The mug 1 is in shelf 2.`, `Look in drawer 3-4 and shelf 1.`, or both."""
    sentences = [phrases.seen(thing, place) for thing, place in view.needed]
    if not view.sees_all and places:
        sentences.append(phrases.search(places, view.goal.thing))
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


def advice_from_solution(failure: Trajectory, walkthrough: Sequence[str], phrases: AdvicePhrases = PLAIN) -> str:
    """Return advice such as `The mug 1 is in shelf 2. Then clean it with sinkbasin 1. Put it in countertop 1.`."""
    solution, goal = read_solution(walkthrough), read_goal(compact.read_opening(failure.opening).task)
    # A walkthrough may take the same thing twice; an attempt needs the place where it lay first.
    first: dict[str, str] = {}
    for thing, place in solution.things:
        first.setdefault(thing, place)
    sentences = [phrases.seen(thing, place) for thing, place in first.items()]
    if solution.appliance:
        sentences.append(phrases.transform(goal.transform, solution.appliance))
    if solution.target:
        sentences.append(phrases.target(solution.target))
    return " ".join(sentences)
