"""Variations of a failed attempt: other failures that the same attempt shows.

What an attempt has shown of its room is true whatever it was looking for, after any of its steps, and whatever places
the room has besides those that it visited.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from random import Random

from retroformer.environments.alfworld.text import compact
from retroformer.records import Trajectory

SHORTEST = 3
"""Minimum number of steps of a part."""
MORE_OF_MANY, MORE_OF_FEW = 4, 1
"""Maximum number of places that a room gets of a type of which it has at least three, or fewer."""


def part_of(failure: Trajectory, random: Random) -> Trajectory:
    """Return the attempt cut after any of its steps."""
    steps = failure.steps
    return failure.model_copy(update={"steps": steps[: random.randint(min(SHORTEST, len(steps)), len(steps))]})


def in_another_room(failure: Trajectory, attempts: Iterable[Trajectory], random: Random) -> Trajectory:
    """Return the failure as one in a room with more or fewer places of each type.

    So a reflector cannot recognise a room by its numbers. The new room has all places of the old one that `attempts`
    name, which are all attempts at the task.
    """
    text = " ".join(f"{step.action} {step.observation}" for attempt in attempts for step in attempt.steps)
    places = list[str]()
    for kind, numbers in _numbers(compact.read_opening(failure.opening).places).items():
        # An actor may also name places that no room has.
        named = numbers.intersection(map(int, re.findall(rf"\b{kind} (\d{{1,9}})\b", text)))
        most = max(numbers) + (MORE_OF_MANY if len(numbers) > 2 else MORE_OF_FEW)
        places += [f"{kind} {number}" for number in range(1, random.randint(max(named, default=1), most) + 1)]
    return failure.model_copy(update={"opening": compact.with_places(failure.opening, places)})


def _numbers(places: tuple[str, ...]) -> dict[str, set[int]]:
    numbers = defaultdict[str, set[int]](set)
    for place in places:
        numbers[compact.type_of(place)].add(compact.number_of(place))
    return numbers
