"""An ALFWorld attempt as what is known at its end: for small models, that read little and count badly.

    Task: put a clean cup in countertop
    Found: microwave 1: nothing; countertop 1: lettuce 1, mug 2; drawer 1: knife 1
    Not searched: drawer 2-4, sinkbasin 1, cabinet 1-3
    Done: take mug 2 from countertop 1

It says nothing that the attempt did not show.
"""

from collections.abc import Sequence

from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.reading import read_steps
from retroformer.records import Step, Task

_SEARCHING = ("go to ", "open ", "close ", "look", "examine ", "inventory")


def digest(task: Task, opening: str, steps: Sequence[Step]) -> str:
    """The lines above; places not searched are in the room's order, and a line without content is left out."""
    sentence, places = compact.read_opening(opening)
    known = read_steps(steps)
    found = "; ".join(f"{place}: {', '.join(things) or 'nothing'}" for place, things in known.contents.items())
    left = [place for place in compact.room_order(task, places) if place not in known.contents]
    done = "; ".join(compact.command(step.action) for step in steps if not step.action.startswith(_SEARCHING))
    lines = {"Task": sentence, "Found": found, "Not searched": ", ".join(compact.ranges(left)), "Done": done}
    return "".join(f"{name}: {content}\n" for name, content in lines.items() if content)
