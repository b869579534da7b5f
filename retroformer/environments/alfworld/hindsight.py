"""Advice counted in attempts: where the missing things were, or usually are. No solution of a game is read.

It reads attempts at training games only. A reflector can learn to write it as far as things are in their usual places.
Variations of a failed attempt are other failures that the same attempt shows: what it has shown of its room is true
whatever it was looking for, after any of its steps, and whatever places the room has besides those that it visited.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

import retroformer.environments.alfworld.compact as compact
from retroformer.agents.arms.baselines import seeded
from retroformer.agents.reflector import WrittenReflector
from retroformer.environments.alfworld.advice_reader import find_places
from retroformer.environments.alfworld.advice_writer import advice_on_places, words_of
from retroformer.environments.alfworld.attempt_reader import AttemptView, Goal, read_goal, read_steps, view_of
from retroformer.environments.alfworld.compact import number_of, type_of
from retroformer.environments.section import ArmWording, Wording
from retroformer.method.prompts import Render
from retroformer.method.protocols import Variation
from retroformer.method.records import Lesson, Memory, Trajectory

_PRIOR_LOOKS = 2
"""Weight of the rate over all places, in looks, against that of one type of place."""


class PlaceTable:
    """How often a look into a type of place found a kind of thing, in rooms that have this kind."""

    def __init__(self, attempts: Iterable[Trajectory]) -> None:
        self.goals: dict[str, Goal] = {}
        """Goals of the attempts by their sentences."""
        looked = defaultdict[tuple[str, str], set[str]](set)
        places_of_game = defaultdict[tuple[str, str], defaultdict[str, set[str]]](lambda: defaultdict(set))
        for attempt in attempts:
            game, seen = (attempt.task.split, attempt.task.id), read_steps(attempt.steps)
            sentence = compact.read_opening(attempt.opening).task
            self.goals[sentence] = read_goal(sentence)
            looked[game].update(seen.contents)
            # A thing that a game asks for is in its room, even if no attempt has found it.
            for kind in self.goals[sentence].counts:
                places_of_game[game][kind] |= set()
            for thing, place in seen.first_seen.items():
                places_of_game[game][type_of(thing)].add(place)
        self._looks = defaultdict[str, Counter[str]](Counter)
        self._finds = defaultdict[str, Counter[str]](Counter)
        for game, places_of in places_of_game.items():
            for kind, places in places_of.items():
                self._looks[kind].update(map(type_of, looked[game]))
                self._finds[kind].update(type_of(place) for place in looked[game] if place in places)

    def rate(self, kind: str, place_type: str) -> Fraction:
        """Return the share of looks into this type of place that found the kind of thing, drawn to its mean."""
        looks, finds = self._looks[kind], self._finds[kind]
        mean = Fraction(finds.total() + 1, looks.total() + _PRIOR_LOOKS)
        return (finds[place_type] + _PRIOR_LOOKS * mean) / (looks[place_type] + _PRIOR_LOOKS)

    def places_with(self, kind: str) -> set[str]:
        """Return the types of places at which this kind of thing was found."""
        return set(self._finds[kind])

    def ranked(self, view: AttemptView) -> tuple[str, ...]:
        """Return the unsearched places, the likeliest for a missing thing first; ties keep room order."""
        rates = {
            place: max((self.rate(kind, type_of(place)) for kind in view.missing), default=0)
            for place in view.unsearched
        }
        return tuple(sorted(view.unsearched, key=lambda place: -rates[place]))


MIN_PART_STEPS = 3
"""Minimum number of steps of a part."""
_EXTRA_OF_MANY, _EXTRA_OF_FEW = 4, 1
"""Maximum number of places added to a type with three or more places, and to a type with fewer."""


def in_another_room(failure: Trajectory, texts: Sequence[str], random: Random) -> Trajectory:
    """Return the failure as one in a room with more or fewer places of each type.

    So a reflector cannot recognise a room by its numbers. The new room has all places of the old one that `texts` name:
    all actions and answers of the attempts, also those after the end of a part, and all advice.
    """
    room = compact.read_opening(failure.opening).places
    named = {place for text in texts for mention in find_places(text, room) for place in mention.places}
    places = list[str]()
    for kind in dict.fromkeys(map(type_of, room)):
        numbers = [number_of(place) for place in room if type_of(place) == kind]
        least = max((number_of(place) for place in named if type_of(place) == kind), default=1)
        most = max(numbers) + (_EXTRA_OF_MANY if len(numbers) > 2 else _EXTRA_OF_FEW)
        places += [f"{kind} {number}" for number in range(1, random.randint(least, most) + 1)]
    opening = compact.replace_in_opening(failure.opening, "things", ", ".join(f"a {place}" for place in places))
    return failure.model_copy(update={"opening": opening})


HINDSIGHT_PLACES = 8
"""Maximum number of places that one piece of advice names, as many as the household actor was trained to read."""

SIGHTINGS = {"none": 3, "some": 1, "all": 1}
"""Relative frequencies of other tasks by how many of their things were seen.

The place of a seen thing can be read; the likely place of an unseen thing must be learned. All three occur, so that
what was seen cannot be guessed from the task.
"""


class PlaceHindsight:
    """Writer of advice about failures, from the attempts of training games."""

    def __init__(self, attempts: Iterable[Trajectory], wording: Wording = "demonstrated") -> None:
        self._table = PlaceTable(attempts)
        self._wording: Wording = wording
        self._goals = {sentence: goal for sentence, goal in sorted(self._table.goals.items()) if goal.thing}

    def advice(self, failure: Trajectory, earlier: Sequence[Lesson], others: Sequence[Trajectory]) -> str:
        """Return where the needed things were seen, and the likeliest unsearched places for the rest.

        Places at which `others`, attempts at the same game, saw them are among these. Empty if nothing is left to say.
        """
        view = view_of(failure, earlier)
        ranked = self._table.ranked(view)
        first = ranked[:HINDSIGHT_PLACES]
        seen = (item for attempt in others for item in read_steps(attempt.steps).first_seen.items())
        places = dict.fromkeys(place for thing, place in seen if type_of(thing) in view.missing)
        proved = [place for place in places if place in ranked and place not in first][:HINDSIGHT_PLACES]
        # A retry that ignores its advice repeats the attempt before it, so the advice counts, too.
        played = [*(lesson.advice for lesson in earlier), *(step.action for step in failure.steps)]
        words = words_of(self._wording, Random(" ".join([failure.task.id, failure.opening, *played])))
        return advice_on_places(view, (*first[: HINDSIGHT_PLACES - len(proved)], *proved), *words)

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
            steps, before = attempts[last].steps, earlier[:last]
            end = random.randint(min(MIN_PART_STEPS, len(steps)), len(steps))
            part = attempts[last].model_copy(update={"steps": steps[:end]})
            if number % 2:
                played = [step for attempt in attempts[: last + 1] for step in attempt.steps]
                texts = [text for step in played for text in (step.action, step.observation)]
                part = in_another_room(part, [*texts, *(lesson.advice.lower() for lesson in before)], random)
            if sentence := self._other_task(view_of(part, before), whole, random):
                opening = compact.replace_in_opening(part.opening, "task", f"{sentence}.")
                others.append((part.model_copy(update={"opening": opening}), before))
        return others

    def _other_task(self, view: AttemptView, whole: AttemptView, random: Random) -> str:
        """Draw the task of a training game of which the view is a failure; empty if there is none.

        `whole` is the view of all attempts so far.
        """
        by_sighting = defaultdict[str, defaultdict[str, list[str]]](lambda: defaultdict(list))
        for sentence, goal in self._goals.items():
            if goal.thing == view.goal.thing or replace(whole, goal=goal).is_solved_at_first:
                continue
            other = replace(view, goal=goal)
            types, unsearched = set(map(type_of, view.order)), set(map(type_of, view.unsearched))
            has_places = {goal.target, goal.appliance} - {""} <= types
            if has_places and all(unsearched & self._table.places_with(kind) for kind in other.missing):
                sighting = "all" if other.sees_all else "some" if other.needed else "none"
                by_sighting[sighting][goal.thing].append(sentence)
        if not by_sighting:
            return ""
        sightings = [sighting for sighting in SIGHTINGS if sighting in by_sighting]
        drawn = random.choices(sightings, [SIGHTINGS[sighting] for sighting in sightings])[0]
        by_kind = by_sighting[drawn]
        return random.choice(by_kind[random.choice(sorted(by_kind))])


def table_reflector(
    render: Render,
    attempts: Iterable[Trajectory],
    places: int = HINDSIGHT_PLACES,
    wording: ArmWording = "demonstrated",
) -> WrittenReflector:
    """Return a reflector that names the places at which training attempts most often found what is missing."""
    table = PlaceTable(attempts)

    def write(trajectory: Trajectory, memory: Memory, seed: int) -> str:
        view = view_of(trajectory, memory.earlier)
        return advice_on_places(view, table.ranked(view)[:places], *words_of(wording, seeded(trajectory.task, seed)))

    return WrittenReflector("counted-places", render, write)
