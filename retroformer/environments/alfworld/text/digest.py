"""Digest of the attempts at an ALFWorld game as the knowledge at their end, for small models that count badly.

    Task: put a clean cup in countertop
    Found: microwave 1: nothing; countertop 1: lettuce 1, mug 2; drawer 1: knife 1
    Not searched: drawer 2-4, sinkbasin 1, cabinet 1-3
    Done: take mug 2 from countertop 1

It contains nothing that the attempts did not show.
"""

from collections.abc import Sequence

from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import read_steps
from retroformer.records import Trajectory

_SEARCHING = ("go to ", "open ", "close ", "look", "examine ", "inventory")


def digest(attempt: Trajectory, earlier: Sequence[Trajectory] = ()) -> str:
    """Return the lines above; unsearched places are in room order, and lines without content are omitted.

    Places are searched if any attempt looked into them. `Done` is about the last attempt alone, as every attempt begins
    in the same room.
    """
    sentence, places = compact.read_opening(attempt.opening)
    found = read_steps(attempt.steps).contents
    for before in reversed(earlier):
        found = found | {place: things for place, things in _at_first(before).items() if place not in found}
    contents = "; ".join(f"{place}: {', '.join(things) or 'nothing'}" for place, things in found.items())
    left = [place for place in compact.room_order(attempt.task, places) if place not in found]
    done = "; ".join(compact.command(step.action) for step in attempt.steps if not step.action.startswith(_SEARCHING))
    lines = {"Task": sentence, "Found": contents, "Not searched": ", ".join(compact.ranges(left)), "Done": done}
    return "".join(f"{name}: {content}\n" for name, content in lines.items() if content)


def searched(attempt: Trajectory) -> str:
    """Return the places that an attempt looked into, such as `drawer 1-3, desk 1`."""
    return ", ".join(compact.ranges(list(read_steps(attempt.steps).contents)))


def _at_first(attempt: Trajectory) -> dict[str, tuple[str, ...]]:
    """Return the places that an attempt looked into, each with the things that were in it at the start."""
    seen = read_steps(attempt.steps)
    return {
        place: tuple(thing for thing, first in seen.first_seen.items() if first == place) for place in seen.contents
    }
