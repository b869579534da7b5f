"""View of a failed attempt: its goal, its room and what is seen of it, and the order in which advice names places."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import Goal, RoomKnowledge, read_attempts, read_goal
from retroformer.records import Lesson, Trajectory


@dataclass(frozen=True)
class FailureView:
    """Goal of a game, its room, and what a failed attempt, or all attempts so far, have seen there."""

    goal: Goal
    order: tuple[str, ...]
    """Places, in the order of the room line."""
    room: RoomKnowledge

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
    def is_solved_at_first(self) -> bool:
        """True if the things lay at their target before the first action, so that no game has this goal here."""
        served = [place for _, place in self._sightings(self.goal.thing) if compact.type_of(place) == self.goal.target]
        return not self.goal.deed and len(served) >= self.goal.count

    @property
    def missing(self) -> tuple[str, ...]:
        """Kinds of things that the task needs and of which not enough were seen."""
        wanted = ((self.goal.thing, self.goal.count), (self.goal.lamp, 1))
        return tuple(kind for kind, count in wanted if kind and len(self._sightings(kind)) < count)

    @property
    def searched(self) -> tuple[str, ...]:
        """Places that were looked into, in room order."""
        return tuple(place for place in self.order if place in self.room.contents)

    @property
    def unsearched(self) -> tuple[str, ...]:
        """Places that were not looked into, in room order."""
        return tuple(place for place in self.order if place not in self.room.contents)

    def next_places(self, advised: Collection[str] = ()) -> tuple[str, ...]:
        """Return the unsearched places in room order, starting after the last place searched or advised."""
        reached = [index for index, place in enumerate(self.order) if place in advised or place in self.room.contents]
        start = reached[-1] + 1 if reached else 0
        onwards = (*self.order[start:], *self.order[:start])
        return tuple(place for place in onwards if place not in self.room.contents)

    def _sightings(self, kind: str) -> list[tuple[str, str]]:
        return [(thing, place) for thing, place in self.room.first_seen.items() if compact.type_of(thing) == kind]


def view_of(failure: Trajectory, earlier: Sequence[Lesson] = ()) -> FailureView:
    """Return the view that the text of a failure gives, and of the attempts before it, oldest first."""
    sentence, places = compact.read_opening(failure.opening)
    room = read_attempts([*(lesson.attempt for lesson in earlier), failure])
    return FailureView(read_goal(sentence), compact.room_order(failure.task, places), room)
