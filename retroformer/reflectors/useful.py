"""Advice written by rule that is worth trying: what was seen, else a few places, drawn at random and in any order.

It is the first lesson of a reflector that is to learn from ratings which places pay: it knows nothing of where things
usually are, and it leaves every choice open.
"""

from random import Random

from retroformer.environments.alfworld.compact import type_of
from retroformer.prompts import Render
from retroformer.records import Memory, Reflection, Trajectory
from retroformer.reflectors.rule import signed, view_of
from retroformer.reflectors.wording import PHRASES, PLAIN

KINDS = (2, 4)
"""How many types of places one piece of advice names, at least and at most."""
OF_A_KIND = (1, 3)
"""How many places of each."""


class UsefulReflector:
    """Draws useful advice."""

    def __init__(self, render: Render) -> None:
        self._render = render

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Advice drawn by the seed and the task; the same again for the same."""
        random = Random(f"{seed}/{trajectory.task.split}/{trajectory.task.id}/{len(memory.reflections)}")
        text = useful_advice(trajectory, random)
        return signed("useful", text, self._render, trajectory, memory, seed)


def useful_advice(failure: Trajectory, random: Random) -> str:
    """`The mug 1 is in shelf 2.`, `Look in shelf 1-2, desk 1 and bed 1.` with places not looked into, or both."""
    view = view_of(failure)
    sentences = view.sightings()
    left = [place for place in view.order if place not in view.seen.contents]
    if left and len(sentences) < view.goal.count + bool(view.goal.lamp):
        kinds = list(dict.fromkeys(map(type_of, left)))
        drawn = random.sample(kinds, min(len(kinds), random.randint(*KINDS)))
        places = [
            place
            for kind in drawn
            for place in [one for one in left if type_of(one) == kind][: random.randint(*OF_A_KIND)]
        ]
        sentences.append(PLAIN.search(places, view.goal.thing))
    return " ".join(sentences) or random.choice(PHRASES)
