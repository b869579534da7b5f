"""Check for advice that gives away where a thing lies."""

import re
from collections.abc import Callable, Iterator, Sequence

from retroformer.environments.alfworld.advice_reader import clauses_of, read_advice
from retroformer.environments.alfworld.attempt_reader import AttemptView, read_solution, view_of
from retroformer.environments.alfworld.compact import type_of
from retroformer.files.document import code
from retroformer.method.records import Task, Trajectory

_GUESS = re.compile(
    r"\b(?:may|might|maybe|perhaps|could|can|possibly|probably|likely|usually|often|typically|should|would|if|whether|"
    r"unless|until|hopefully|suspect|guess|expect|assume|think|believe|look|looking|search|check|try)\b"
)
"""Words of a clause that guesses or searches."""


class PlaceLeak:
    """Check whether advice says where a wanted thing lies although no attempt had seen it there, by the walkthrough.

    Only a statement about a single place counts: `take the mug from shelf 2`, not `look in shelf 2` or `the mug may be
    in shelf 2`, which any reflector may guess. A statement that is right by chance counts as well. The reader of advice
    decides what a statement is, so other words go unnoticed.
    """

    rule = (
        "Advice gives the place away if it says that a wanted thing is at one place, the walkthrough takes it there, "
        "and no attempt before it had seen it there. Guesses, such as ",
        code("look in shelf 2"),
        ", are not counted.",
    )

    def __init__(self, walkthrough: Callable[[Task], Sequence[str]]) -> None:
        self._walkthrough = walkthrough
        """Returns winning actions. Raises UnknownTask, MissingInput, EnvironmentFailure."""

    def given_away(self, advice: str, attempts: Sequence[Trajectory]) -> str:
        """Return where a thing lies, such as `mug 1 in shelf 2`, if only the advice says it; else "".

        Raises UnknownTask, MissingInput, EnvironmentFailure.
        """
        views = [view_of(attempt) for attempt in attempts]
        stated = {
            (kind, place)
            for kind, place in _statements(advice, views[-1])
            if not any(place in view.places_of((kind,)) for view in views)
        }
        if not stated:
            return ""
        things = read_solution(self._walkthrough(attempts[-1].task)).things
        return ", ".join(f"{thing} in {place}" for thing, place in things if (type_of(thing), place) in stated)


def _statements(advice: str, view: AttemptView) -> Iterator[tuple[str, str]]:
    """Yield (type of thing, place) for each clause that says where a thing is, at a single place of the room."""
    for clause in clauses_of(advice):
        if _GUESS.search(clause):
            continue
        for kind, places in read_advice([clause], view.order, view.goal).sightings.items():
            if len(places) == 1:
                yield kind, places[0]
