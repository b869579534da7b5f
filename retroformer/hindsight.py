"""Hindsight: advice about a failure that attempts of training tasks have proved right.

Its sources are stored attempts and reflections alone; no writer here can reach a solution, a planner or a walkthrough.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from retroformer.records import Lesson, Trajectory


class Hindsight(Protocol):
    """Writer of advice from the attempts of training tasks that it was built with."""

    def advice(self, failure: Trajectory, earlier: Sequence[Lesson], others: Sequence[Trajectory]) -> str:
        """Return advice about a failure; empty if the attempts prove none.

        Args:
            failure: the failed attempt.
            earlier: the attempts before it, with the advice after each, oldest first.
            others: all other attempts at the same task in the same trial and in later ones.
        """
        ...

    def with_another_goal(self, failure: Trajectory, earlier: Sequence[Lesson]) -> Trajectory | None:
        """Return the attempt as a failure at another task, about which it says more; None if there is none.

        This is the idea of hindsight experience replay (Andrychowicz et al., 2017): what an attempt has shown is true
        whatever it was looking for.
        """
        ...


BuildHindsight: TypeAlias = Callable[[Iterable[Trajectory]], Hindsight]
"""Builds the writer from the attempts of training tasks."""
