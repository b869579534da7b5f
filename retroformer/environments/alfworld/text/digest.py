"""Digest of the attempts at an ALFWorld game as the knowledge at their end, for small models that count badly.

    Task: put a clean mug in countertop
    Seen: mug 2 in countertop 1
    Searched: microwave 1, countertop 1, drawer 1
    Not searched: drawer 2-4, sinkbasin 1, cabinet 1-3

It contains nothing that the attempts did not show. Of the things they showed, it names those that the task names. What
an attempt moved is left out, as every attempt begins in the same room.
"""

import re
from collections.abc import Sequence

from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import read_attempts, read_steps
from retroformer.records import Trajectory


def digest(attempt: Trajectory, earlier: Sequence[Trajectory] = ()) -> str:
    """Return the lines above; unsearched places are in room order.

    Places are searched if any attempt looked into them, and things are named with the place where they lay at first.
    `Searched` and `Not searched` are omitted where they name no place.
    """
    sentence, places = compact.read_opening(attempt.opening)
    room = read_attempts([*earlier, attempt])
    names = set(re.findall(r"\w+", sentence.lower()))
    seen = [f"{thing} in {place}" for thing, place in room.first_seen.items() if compact.type_of(thing) in names]
    left = [place for place in compact.room_order(attempt.task, places) if place not in room.contents]
    lines = {
        "Task": sentence,
        "Seen": ", ".join(seen) or "none",
        "Searched": compact.listed(list(room.contents)),
        "Not searched": compact.listed(left),
    }
    return "".join(f"{name}: {content}\n" for name, content in lines.items() if content)


def searched(attempt: Trajectory) -> str:
    """Return the places that an attempt looked into, such as `drawer 1-3, desk 1`."""
    return compact.listed(list(read_steps(attempt.steps).contents))
