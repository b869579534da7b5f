"""Advice that other attempts have proved right: where the missing things were, or usually are.

It reads attempts at training games only. A reflector can learn to write it as far as things are in their usual places.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from retroformer.environments.alfworld.advice.failure import FailureView, view_of
from retroformer.environments.alfworld.advice.places import PlaceTable, places_of
from retroformer.environments.alfworld.advice.rule_reflector import NEXT_PLACES, signed
from retroformer.environments.alfworld.advice.wording import PLAIN
from retroformer.environments.alfworld.text import compact
from retroformer.prompts import Render
from retroformer.records import Lesson, Memory, Reflection, Trajectory

_TASK = "Your task is to:"


class PlaceHindsight:
    """Writer of advice about failures, from the attempts of training games."""

    def __init__(self, attempts: Iterable[Trajectory]) -> None:
        self._table = PlaceTable(attempts)
        self._goals = {sentence: goal for sentence, goal in sorted(self._table.goals.items()) if goal.thing}

    def advice(self, failure: Trajectory, earlier: Sequence[Lesson], others: Sequence[Trajectory]) -> str:
        """Return where the needed things were seen, and the likeliest unsearched places for the rest.

        Places at which `others`, attempts at the same game, saw them are among these. Empty if nothing is left to say.
        """
        view = view_of(failure, earlier)
        ranked = self._table.ranked(view)
        first = ranked[:NEXT_PLACES]
        proved = [place for place in places_of(view.missing, others) if place in ranked and place not in first]
        proved = proved[:NEXT_PLACES]
        return advice_on_places(view, (*first[: NEXT_PLACES - len(proved)], *proved))

    def with_other_goals(self, failure: Trajectory, earlier: Sequence[Lesson], count: int) -> Sequence[Trajectory]:
        """Return the attempt as failures at tasks of other training games that could be set in its room.

        All, some and none of the things that these tasks need were seen equally often, so that what was seen must be
        read and cannot be guessed.
        """
        view = view_of(failure, earlier)
        chance = random.Random(" ".join([failure.task.id, *(step.action for step in failure.steps)]))
        by_sighting = defaultdict[str, list[str]](list)
        for sentence, goal in self._goals.items():
            other = replace(view, goal=goal)
            if goal.thing != view.goal.thing and self._could_be_set(other):
                by_sighting["all" if other.sees_all else "some" if other.needed else "none"].append(sentence)
        chosen = list[str]()
        while len(chosen) < count and (left := sorted(name for name, sentences in by_sighting.items() if sentences)):
            sentences = by_sighting[chance.choice(left)]
            chosen.append(sentences.pop(chance.randrange(len(sentences))))
        before, heading, _ = failure.opening.rpartition(_TASK)
        return [failure.model_copy(update={"opening": f"{before}{heading} {sentence}."}) for sentence in chosen]

    def _could_be_set(self, view: FailureView) -> bool:
        """Return True if a room has the places of a goal, and what is missing may lie at one that is left."""
        types, left = ({compact.type_of(place) for place in places} for places in (view.order, view.unsearched))
        needed = {view.goal.target, view.goal.appliance} - {""}
        return needed <= types and all(left & self._table.places_with(kind) for kind in view.missing)


class TableReflector:
    """Reflector that names the places at which training attempts most often found what is missing: no model."""

    def __init__(self, render: Render, attempts: Iterable[Trajectory]) -> None:
        self._render, self._table = render, PlaceTable(attempts)

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice; the seed changes nothing."""
        view = view_of(trajectory, memory.earlier)
        text = advice_on_places(view, self._table.ranked(view)[:NEXT_PLACES])
        return signed("counted-places", text, self._render, trajectory, memory, seed)


def advice_on_places(view: FailureView, places: Sequence[str]) -> str:
    """Return `The mug 1 is in shelf 2.`, `Look in drawer 3-4 and shelf 1.`, or both."""
    sentences = [PLAIN.seen(thing, place) for thing, place in view.needed]
    if not view.sees_all and places:
        sentences.append(PLAIN.search(places, view.goal.thing))
    return " ".join(sentences)
