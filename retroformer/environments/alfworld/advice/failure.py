"""View of a failed attempt: its goal, its room and what it has seen, and the order in which advice names places."""

from collections.abc import Collection
from dataclasses import dataclass

from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import Goal, RoomKnowledge, read_goal, read_steps
from retroformer.records import Trajectory


@dataclass(frozen=True)
class FailureView:
    """Goal of a game, its room, and what a failed attempt has seen there."""

    goal: Goal
    order: tuple[str, ...]
    """Places, in the order of the room line."""
    seen: RoomKnowledge

    @property
    def needed(self) -> tuple[tuple[str, str], ...]:
        """Needed things that were seen, up to the number needed, each with the place where it was first seen."""
        wanted = ((self.goal.thing, self.goal.count), (self.goal.lamp, 1))
        return tuple(pair for kind, count in wanted if kind for pair in self._sightings(kind)[:count])

    @property
    def sees_all(self) -> bool:
        """True if everything that the task needs was seen."""
        return len(self.needed) == self.goal.count + bool(self.goal.lamp)

    @property
    def searched(self) -> tuple[str, ...]:
        """Places that the attempt looked into, in room order."""
        return tuple(place for place in self.order if place in self.seen.contents)

    @property
    def unsearched(self) -> tuple[str, ...]:
        """Places that the attempt did not look into, in room order."""
        return tuple(place for place in self.order if place not in self.seen.contents)

    def next_places(self, advised: Collection[str] = ()) -> tuple[str, ...]:
        """Return the unsearched places in room order, starting after the last place searched or advised."""
        reached = [index for index, place in enumerate(self.order) if place in advised or place in self.seen.contents]
        start = reached[-1] + 1 if reached else 0
        onwards = (*self.order[start:], *self.order[:start])
        return tuple(place for place in onwards if place not in self.seen.contents)

    def _sightings(self, kind: str) -> list[tuple[str, str]]:
        return [(thing, place) for thing, place in self.seen.first_seen.items() if compact.type_of(thing) == kind]


def view_of(failure: Trajectory) -> FailureView:
    """Return the view that the text of a failure gives."""
    sentence, places = compact.read_opening(failure.opening)
    return FailureView(read_goal(sentence), compact.room_order(failure.task, places), read_steps(failure.steps))
