"""Useful advice written by rule: what was seen, else a few unsearched places, drawn at random and in any order.

It is the warm start of a reflector that must learn from ratings which places pay off: it uses no knowledge of where
things usually are, and leaves every choice open.
"""

from random import Random

from retroformer.agents.baseline import PHRASES
from retroformer.environments.alfworld.advice.failure import FailureView, view_of
from retroformer.environments.alfworld.advice.rule_reflector import signed
from retroformer.environments.alfworld.advice.wording import PLAIN
from retroformer.environments.alfworld.text.compact import type_of
from retroformer.prompts import Render
from retroformer.records import Memory, Reflection, Trajectory

KINDS = (2, 4)
"""Minimum and maximum number of types of place that one piece of advice names."""
OF_A_KIND = (1, 3)
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
        drawn = random.sample(kinds, min(len(kinds), random.randint(*KINDS)))
        places = [
            place
            for kind in drawn
            for place in [spot for spot in left if type_of(spot) == kind][: random.randint(*OF_A_KIND)]
        ]
        sentences.append(PLAIN.search(places, view.goal.thing))
    return " ".join(sentences) or random.choice(PHRASES)
