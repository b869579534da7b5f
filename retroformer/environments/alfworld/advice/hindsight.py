"""Advice that other attempts have proved right: where the missing things were, or usually are.

It reads attempts of training games alone. What it writes about a failure can be learned from the reflector's prompt as
far as things are where they usually are.
"""

import random
import re
from collections.abc import Iterable, Sequence

from retroformer.environments.alfworld.advice.failure import FailureView, view_of
from retroformer.environments.alfworld.advice.places import PlaceTable, places_of
from retroformer.environments.alfworld.advice.rule_reflector import NEXT_PLACES, signed
from retroformer.environments.alfworld.advice.wording import PLAIN
from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import read_steps
from retroformer.prompts import Render
from retroformer.records import Lesson, Memory, Reflection, Trajectory

_TASK = "Your task is to:"


class PlaceHindsight:
    """Writer of advice about failures, from the attempts of training games."""

    def __init__(self, attempts: Iterable[Trajectory]) -> None:
        self._table = PlaceTable(attempts)

    def advice(self, failure: Trajectory, earlier: Sequence[Lesson], others: Sequence[Trajectory]) -> str:
        """Return where the task's things were seen, and for those not seen the likeliest places.

        Places at which `others`, attempts at the same game, saw them are among these. Empty if nothing is left to say.
        """
        view = view_of(failure, earlier)
        ranked = self._table.ranked(view)
        first = ranked[:NEXT_PLACES]
        proved = [place for place in places_of(view.missing, others) if place in ranked and place not in first]
        return advice_on_places(view, (*first[: NEXT_PLACES - len(proved)], *proved[:NEXT_PLACES]))

    def with_another_goal(self, failure: Trajectory, earlier: Sequence[Lesson]) -> Trajectory | None:
        """Return the attempt as one that was looking for another thing: one that it overlooked, or one that it missed.

        Both are equally likely, so that whether a thing was seen must be read and cannot be guessed. None if an attempt
        moved something, since it would not have done so for another thing, or if there is no other thing that training
        games ask for.
        """
        attempts = [failure, *(lesson.attempt for lesson in earlier)]
        if any(seen.whereabouts != seen.first_seen for seen in (read_steps(attempt.steps) for attempt in attempts)):
            return None
        view = view_of(failure, earlier)
        chance = random.Random(" ".join([failure.task.id, *(step.action for step in failure.steps)]))
        seen = {compact.type_of(thing) for thing in view.seen.first_seen}
        left = {compact.type_of(place) for place in view.unsearched}
        missed = {kind for kind in self._table.wanted - seen if left & self._table.places_with(kind)}
        others = sorted(
            (seen & self._table.wanted if chance.random() < 0.5 else missed) - {view.goal.thing, view.goal.lamp}
        )
        if not others or not view.goal.thing:
            return None
        before, heading, sentence = failure.opening.rpartition(_TASK)
        sentence = re.sub(rf"\b{view.goal.thing}\b", chance.choice(others), sentence)
        return failure.model_copy(update={"opening": before + heading + sentence})


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
