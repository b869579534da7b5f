"""What a winning walkthrough gives away: where the things lie, where the deed is done, where they go."""

from collections.abc import Sequence
from typing import NamedTuple

from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.reading import APPLIANCES


class Solution(NamedTuple):
    """One way to win; what a game does not need is empty."""

    things: tuple[tuple[str, str], ...]
    """Each thing that is taken or switched on, and the place where it lies before anybody moves it."""
    appliance: str
    """Where things are cleaned, heated or cooled."""
    target: str
    """Where they are put."""


def read_solution(walkthrough: Sequence[str]) -> Solution:
    """The solution in these commands, in either grammar."""
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
