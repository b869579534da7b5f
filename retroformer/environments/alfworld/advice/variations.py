"""Variations of a failed attempt: other failures that the same attempt shows.

What an attempt has shown of its room is true whatever it was looking for, after any of its steps, and whatever places
the room has besides those that it visited.
"""

from collections.abc import Sequence
from random import Random

from retroformer.environments.alfworld.advice.clauses import find_places
from retroformer.environments.alfworld.text import compact
from retroformer.records import Trajectory

SHORTEST = 3
"""Minimum number of steps of a part."""
MORE_OF_MANY, MORE_OF_FEW = 4, 1
"""Maximum number of places added to a type with three or more places, and to a type with fewer."""


def part_of(failure: Trajectory, random: Random) -> Trajectory:
    """Return the attempt cut after a random step, but not before its third."""
    steps = failure.steps
    return failure.model_copy(update={"steps": steps[: random.randint(min(SHORTEST, len(steps)), len(steps))]})


def in_another_room(failure: Trajectory, texts: Sequence[str], random: Random) -> Trajectory:
    """Return the failure as one in a room with more or fewer places of each type.

    So a reflector cannot recognise a room by its numbers. The new room has all places of the old one that `texts` name:
    all actions and answers of the attempts, also those after the end of a part, and all advice.
    """
    room = compact.read_opening(failure.opening).places
    named = {place for text in texts for mention in find_places(text, room) for place in mention.places}
    places = list[str]()
    for kind in dict.fromkeys(map(compact.type_of, room)):
        numbers = [compact.number_of(place) for place in room if compact.type_of(place) == kind]
        least = max((compact.number_of(place) for place in named if compact.type_of(place) == kind), default=1)
        most = max(numbers) + (MORE_OF_MANY if len(numbers) > 2 else MORE_OF_FEW)
        places += [f"{kind} {number}" for number in range(1, random.randint(least, most) + 1)]
    return failure.model_copy(update={"opening": compact.with_places(failure.opening, places)})
