"""Advice written by rule, from the text of the failure alone: a yardstick for reflectors, and their first lesson.

Neither writer knows more of the game than the actor saw. `RuleReflector` writes the best it can. `MixedReflector`
writes for the warm start: short sentences in the right form, of which most are of little use, so that a model learns
from them how advice sounds, and has to learn from ratings which advice pays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Literal

from retroformer.actors.advice import read_advice
from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.reading import Experience, Goal, read_goal, read_steps
from retroformer.prompts import Render
from retroformer.records import Author, Memory, Reflection, Sampling, Trajectory
from retroformer.reflectors.wording import PHRASES, PLAIN, Manner, Voice, voice

Kind = Literal["unvisited", "visited", "seen", "empty"]

MIXTURE: Mapping[Kind, float] = MappingProxyType({"unvisited": 0.35, "visited": 0.25, "seen": 0.25, "empty": 0.15})
"""Shares of the warm start's advice.

unvisited: look in one to three places, drawn from those not looked into.
visited: look in one to three places, drawn from those looked into already, so of no use.
seen: where a thing of the task was seen; where none was seen, one to three places drawn from the whole room.
empty: a phrase that says nothing.
"""

MOST_PLACES = 3
"""How many places one piece of mixed advice names at most."""

EMPTY_PHRASES = PHRASES[:5]
"""Those that the mixture draws from."""

NEXT_PLACES = 6
"""How many places one piece of advice sends the actor to."""


class RuleReflector:
    """Says where the things of the task were seen, and where to search on for those that were not."""

    def __init__(self, render: Render, manner: Manner = "demonstrated") -> None:
        self._render = render
        self._manner: Manner = manner

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Empty where every place was searched in vain. The seed draws unseen sentences and nothing else."""
        text = advice_by_rule(trajectory, memory, voice(self._manner, trajectory.task, seed))
        return signed("next-places", text, self._render, trajectory, memory, seed)


class MixedReflector:
    """Draws advice of mixed use."""

    def __init__(self, render: Render, mixture: Mapping[Kind, float] = MIXTURE) -> None:
        self._render = render
        self.mixture = mixture

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Advice drawn by the seed and the task; the same again for the same."""
        random = Random(f"{seed}/{trajectory.task.split}/{trajectory.task.id}/{len(memory.reflections)}")
        kind = random.choices(tuple(self.mixture), tuple(self.mixture.values()))[0]
        text = mixed_advice(trajectory, kind, random)
        return signed("mixed", text, self._render, trajectory, memory, seed)


def advice_by_rule(failure: Trajectory, memory: Memory, speaker: Voice = PLAIN) -> str:
    """`The mug 1 is in shelf 2.`, `Look in drawer 3-4 and shelf 1.`, or both."""
    view = view_of(failure)
    sentences = view.sightings(speaker)
    missing = view.goal.count + bool(view.goal.lamp) - len(sentences)
    places = view.next_places(memory)[:NEXT_PLACES] if missing > 0 else ()
    if places:
        sentences.append(speaker.search(places, view.goal.thing))
    return " ".join(sentences)


def mixed_advice(failure: Trajectory, kind: Kind, random: Random) -> str:
    """One or two short sentences of this kind; of the nearest kind that the failure allows."""
    view = view_of(failure)
    sightings = view.sightings()
    if kind == "seen" and sightings:
        return " ".join(sightings)
    visited = [place for place in view.order if place in view.seen.contents]
    places = {"unvisited": [place for place in view.order if place not in visited], "visited": visited}
    choice = places.get(kind) or list(view.order)
    if kind == "empty" or not choice:
        return random.choice(EMPTY_PHRASES)
    drawn = random.sample(choice, min(len(choice), random.randint(1, MOST_PLACES)))
    named = tuple(place for place in view.order if place in drawn)
    return PLAIN.search(named, view.goal.thing)


@dataclass(frozen=True)
class View:
    """A failure as its text shows it."""

    goal: Goal
    order: tuple[str, ...]
    seen: Experience

    def sightings(self, speaker: Voice = PLAIN) -> list[str]:
        """One sentence for each thing that the task needs and that was seen, as many as it needs."""
        found = {kind: self._first_seen(kind) for kind in (self.goal.thing, self.goal.lamp) if kind}
        needed = {self.goal.thing: self.goal.count, self.goal.lamp: 1}
        return [speaker.seen(thing, place) for kind, seen in found.items() for thing, place in seen[: needed[kind]]]

    def next_places(self, memory: Memory) -> tuple[str, ...]:
        """Places not looked into, in the room's order from the furthest one that was searched or advised."""
        named = {place for text in memory.reflections for place in read_advice([text], self.order, self.goal).first}
        reached = [index for index, place in enumerate(self.order) if place in named or place in self.seen.contents]
        start = reached[-1] + 1 if reached else 0
        onwards = (*self.order[start:], *self.order[:start])
        return tuple(place for place in onwards if place not in self.seen.contents)

    def _first_seen(self, kind: str) -> list[tuple[str, str]]:
        return [(thing, place) for thing, place in self.seen.first_seen.items() if compact.type_of(thing) == kind]


def view_of(failure: Trajectory) -> View:
    """What the text of a failure shows."""
    sentence, places = compact.read_opening(failure.opening)
    return View(read_goal(sentence), compact.room_order(failure.task, places), read_steps(failure.steps))


def signed(rule: str, text: str, render: Render, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
    """The reflection with who wrote it by which rule, and the prompt that a model would have read."""
    return Reflection(
        text=text,
        prompt=render(trajectory, memory),
        author=Author(endpoint="rule", model=rule),
        sampling=Sampling(seed=seed),
    )
