"""Hindsight: advice about a failure that a program writes from the attempts of training tasks.

A writer is given stored attempts and advice, and nothing else. Tests check that the writers of ALFWorld and HotPotQA
import nothing that knows a solution.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from retroformer.method.records import Lesson, Trajectory

Variation: TypeAlias = tuple[Trajectory, Sequence[Lesson]]
"""A failed attempt, and the attempts before it with the advice after each, oldest first."""


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

    def variations(self, failure: Trajectory, earlier: Sequence[Lesson], count: int) -> Sequence[Variation]:
        """Return at most `count` variations: parts of the attempts so far, each as a failure at another task.

        This is the idea of hindsight experience replay (Andrychowicz et al., 2017): what an attempt has shown is true
        whatever it was looking for. The advice before it stays as it was given, about its own task. Each task is drawn
        anew, so it may be drawn twice.
        """
        ...


BuildHindsight: TypeAlias = Callable[[Iterable[Trajectory]], Hindsight]
"""Builds the writer from the attempts of training tasks."""
