"""Where things usually are, counted in attempts that an agent has made: no solution of a game is read."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

from retroformer.environments.alfworld.advice.failure import FailureView
from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.compact import type_of
from retroformer.environments.alfworld.text.reading import Goal, read_goal, read_steps
from retroformer.records import Trajectory

_PRIOR_LOOKS = 2
"""Weight of the rate over all places, in looks, against that of one type of place."""


class _Room:
    """What all attempts at one game have shown of its room."""

    def __init__(self) -> None:
        self.wanted: set[str] = set()
        self.looked: set[str] = set()
        self.found: defaultdict[str, set[str]] = defaultdict(set)
        """Places at which each kind of thing lay at first."""


class PlaceTable:
    """How often a look into a type of place found a kind of thing, in rooms that have this kind."""

    def __init__(self, attempts: Iterable[Trajectory]) -> None:
        rooms = defaultdict[tuple[str, str], _Room](_Room)
        self.goals: dict[str, Goal] = {}
        """Goals of the attempts by their sentences."""
        for attempt in attempts:
            room, seen = rooms[attempt.task.split, attempt.task.id], read_steps(attempt.steps)
            sentence = compact.read_opening(attempt.opening).task
            goal = self.goals[sentence] = read_goal(sentence)
            room.wanted.update(filter(None, (goal.thing, goal.lamp)))
            room.looked.update(seen.contents)
            for thing, place in seen.first_seen.items():
                room.found[type_of(thing)].add(place)
        self._looks: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._finds: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for room in rooms.values():
            # A thing that a game asks for is in its room, even if no attempt has found it.
            for kind in room.wanted | set(room.found):
                for place in room.looked:
                    self._looks[kind][type_of(place)] += 1
                    self._finds[kind][type_of(place)] += place in room.found[kind]

    def rate(self, kind: str, place_type: str) -> Fraction:
        """Return the share of looks into this type of place that found the kind of thing, drawn to its mean."""
        looks, finds = self._looks[kind], self._finds[kind]
        mean = Fraction(sum(finds.values()) + 1, sum(looks.values()) + _PRIOR_LOOKS)
        return (finds[place_type] + _PRIOR_LOOKS * mean) / (looks[place_type] + _PRIOR_LOOKS)

    def places_with(self, kind: str) -> set[str]:
        """Return the types of places at which this kind of thing was found."""
        return {place_type for place_type, finds in self._finds[kind].items() if finds}

    def ranked(self, view: FailureView) -> tuple[str, ...]:
        """Return the unsearched places, the likeliest for a missing thing first; ties keep room order."""
        kinds = view.missing
        return tuple(
            sorted(
                view.unsearched, key=lambda place: -max((self.rate(kind, type_of(place)) for kind in kinds), default=0)
            )
        )


def places_of(kinds: Sequence[str], attempts: Iterable[Trajectory]) -> tuple[str, ...]:
    """Return the places at which these attempts first saw a thing of these kinds."""
    seen = (item for attempt in attempts for item in read_steps(attempt.steps).first_seen.items())
    return tuple(dict.fromkeys(place for thing, place in seen if type_of(thing) in kinds))
