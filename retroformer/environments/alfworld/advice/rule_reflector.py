"""Advice written by rule from the text of the failure alone: a baseline for reflectors, and their warm-start data.

Both writers know only what the actor saw. `RuleReflector` writes the best advice it can. `MixedReflector` writes
warm-start data: short sentences in the right form, mostly of little use, so that a model learns the form of advice here
and must learn from ratings which advice helps.
"""

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Literal

from retroformer.agents.baseline import PHRASES
from retroformer.environments.alfworld.advice.failure import FailureView, view_of
from retroformer.environments.alfworld.advice.reader import read_advice
from retroformer.environments.alfworld.advice.wording import PLAIN, Manner, Voice, voice
from retroformer.prompts import Render
from retroformer.records import Author, Memory, Reflection, Sampling, Trajectory

Kind = Literal["unvisited", "visited", "seen", "empty"]

MIXTURE: Mapping[Kind, float] = MappingProxyType({"unvisited": 0.35, "visited": 0.25, "seen": 0.25, "empty": 0.15})
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

    def __init__(self, render: Render, mixture: Mapping[Kind, float] = MIXTURE, *, reads_history: bool = False) -> None:
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


def mixed_advice(view: FailureView, kind: Kind, random: Random) -> str:
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
