"""Advice counted in attempts: where the missing things were, or usually are.

It reads attempts at training games only. A reflector can learn to write it as far as things are in their usual places.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random

from retroformer.environments.alfworld.advice.failure import FailureView, view_of
from retroformer.environments.alfworld.advice.places import PlaceTable, places_of
from retroformer.environments.alfworld.advice.rule_reflector import advice_on_places, signed
from retroformer.environments.alfworld.advice.variations import in_another_room, part_of
from retroformer.environments.alfworld.text import compact
from retroformer.hindsight import Variation
from retroformer.prompts import Render
from retroformer.records import Lesson, Memory, Reflection, Trajectory

HINDSIGHT_PLACES = 8
"""Maximum number of places that one piece of advice names, as many as the household actor was trained to read."""

SIGHTINGS = {"none": 3, "some": 1, "all": 1}
"""Relative frequencies of other tasks by how many of their things were seen.

The place of a seen thing can be read; the likely place of an unseen thing must be learned. All three occur, so that
what was seen cannot be guessed from the task.
"""


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
        first = ranked[:HINDSIGHT_PLACES]
        proved = [place for place in places_of(view.missing, others) if place in ranked and place not in first]
        proved = proved[:HINDSIGHT_PLACES]
        return advice_on_places(view, (*first[: HINDSIGHT_PLACES - len(proved)], *proved))

    def variations(self, failure: Trajectory, earlier: Sequence[Lesson], count: int) -> Sequence[Variation]:
        """Return parts of the attempts so far as failures at tasks of training games that could be set in the room.

        A part ends after some step of any of the attempts, and every other one is in a room with other numbers of
        places. Whether none, some or all of the needed things were seen is drawn first, by `SIGHTINGS`, and then a kind
        of thing, however many tasks are about it: all possible ones are equally likely.
        """
        if not compact.read_opening(failure.opening).places:
            return ()
        random = Random(" ".join([failure.task.id, *(step.action for step in failure.steps)]))
        attempts = [*(lesson.attempt for lesson in earlier), failure]
        whole, others = view_of(failure, earlier), list[Variation]()
        for number in range(count):
            last = random.randrange(len(attempts))
            part, before = part_of(attempts[last], random), earlier[:last]
            if number % 2:
                part = in_another_room(part, _texts(attempts[: last + 1], before), random)
            if sentence := self._other_task(view_of(part, before), whole, random):
                others.append((part.model_copy(update={"opening": compact.with_task(part.opening, sentence)}), before))
        return others

    def _other_task(self, view: FailureView, whole: FailureView, random: Random) -> str:
        """Draw the task of a training game of which the view is a failure; empty if there is none.

        `whole` is the view of all attempts so far.
        """
        by_sighting = defaultdict[str, defaultdict[str, list[str]]](lambda: defaultdict(list))
        for sentence, goal in self._goals.items():
            if goal.thing == view.goal.thing or replace(whole, goal=goal).is_solved_at_first:
                continue
            other = replace(view, goal=goal)
            if self._could_be_set(other):
                sighting = "all" if other.sees_all else "some" if other.needed else "none"
                by_sighting[sighting][goal.thing].append(sentence)
        if not by_sighting:
            return ""
        sightings = [sighting for sighting in SIGHTINGS if sighting in by_sighting]
        drawn = random.choices(sightings, [SIGHTINGS[sighting] for sighting in sightings])[0]
        by_kind = by_sighting[drawn]
        return random.choice(by_kind[random.choice(sorted(by_kind))])

    def _could_be_set(self, view: FailureView) -> bool:
        """Return True if a room has the places of a goal, and what is missing may lie at one that is left."""
        types, left = ({compact.type_of(place) for place in places} for places in (view.order, view.unsearched))
        needed = {view.goal.target, view.goal.appliance} - {""}
        return needed <= types and all(left & self._table.places_with(kind) for kind in view.missing)


def _texts(attempts: Sequence[Trajectory], earlier: Sequence[Lesson]) -> list[str]:
    """Return all actions and answers of these attempts, and all advice."""
    steps = [text for attempt in attempts for step in attempt.steps for text in (step.action, step.observation)]
    return [*steps, *(lesson.advice.lower() for lesson in earlier)]


class TableReflector:
    """Reflector that names the places at which training attempts most often found what is missing: no model."""

    def __init__(self, render: Render, attempts: Iterable[Trajectory], places: int = HINDSIGHT_PLACES) -> None:
        self._render, self._table, self._places = render, PlaceTable(attempts), places

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice; the seed changes nothing."""
        view = view_of(trajectory, memory.earlier)
        text = advice_on_places(view, self._table.ranked(view)[: self._places])
        return signed("counted-places", text, self._render, trajectory, memory, seed)
