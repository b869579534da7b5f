"""Digest of an ALFWorld attempt as the knowledge at its end, for small models with short contexts that count badly.

    Task: put a clean cup in countertop
    Found: microwave 1: nothing; countertop 1: lettuce 1, mug 2; drawer 1: knife 1
    Not searched: drawer 2-4, sinkbasin 1, cabinet 1-3
    Done: take mug 2 from countertop 1

It contains nothing that the attempt did not show.
"""

from collections.abc import Sequence

from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import read_steps
from retroformer.records import Step, Task

_SEARCHING = ("go to ", "open ", "close ", "look", "examine ", "inventory")


def digest(task: Task, opening: str, steps: Sequence[Step]) -> str:
    """Return the lines above; unsearched places are in room order, and lines without content are omitted."""
    sentence, places = compact.read_opening(opening)
    experience = read_steps(steps)
    contents = "; ".join(f"{place}: {', '.join(things) or 'nothing'}" for place, things in experience.contents.items())
    left = [place for place in compact.room_order(task, places) if place not in experience.contents]
    done = "; ".join(compact.command(step.action) for step in steps if not step.action.startswith(_SEARCHING))
    lines = {"Task": sentence, "Found": contents, "Not searched": ", ".join(compact.ranges(left)), "Done": done}
    return "".join(f"{name}: {content}\n" for name, content in lines.items() if content)
