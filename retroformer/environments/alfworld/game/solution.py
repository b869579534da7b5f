"""Solution in a winning walkthrough: where the things are, where to clean, heat or cool them, where to put them."""

from collections.abc import Sequence
from typing import NamedTuple

from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import APPLIANCES


class Solution(NamedTuple):
    """One way to win; fields that a game does not need are empty."""

    things: tuple[tuple[str, str], ...]
    """Each thing that is taken or switched on, with its initial place."""
    appliance: str
    """Place where things are cleaned, heated or cooled."""
    target: str
    """Place where they are put."""


def read_solution(walkthrough: Sequence[str]) -> Solution:
    """Return the solution in these commands, in either grammar."""
    things, appliance, target, at = list[tuple[str, str]](), "", "", ""
    for action in map(compact.command, walkthrough):
        verb, _, rest = action.partition(" ")
        if verb == "go":
            at = rest.removeprefix("to ")
        elif verb == "take":
            thing, _, place = rest.partition(" from ")
            things.append((thing, place))
        elif verb == "use":
            things.append((rest, at))
        elif verb in APPLIANCES:
            appliance = rest.partition(" with ")[2]
        elif verb == "move":
            target = rest.partition(" to ")[2]
    return Solution(tuple(things), appliance, target)
