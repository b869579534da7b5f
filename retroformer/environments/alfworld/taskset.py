"""The games that a section of the experiment page describes."""

from typing import Protocol

from retroformer.environments.alfworld.environment import AlfworldEnvironment
from retroformer.environments.alfworld.released import ReleasedGames
from retroformer.environments.sections import Alfworld
from retroformer.records import Task


class AlfworldTaskset(Protocol):
    """A taskset of household games: also single games by id, and how each is won."""

    def tasks(self) -> tuple[Task, ...]: ...

    def task(self, task_id: str) -> Task:
        """One game by id. Raises UnknownTask."""
        ...

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Actions that win, in the configured grammar. Raises UnknownTask, EnvironmentFailure."""
        ...

    def environment(self) -> AlfworldEnvironment: ...


def taskset(section: Alfworld, seed: int = 0) -> AlfworldTaskset:
    """The games that a section describes; `seed` chooses among all generated worlds."""
    if section.source == "generated":
        from retroformer.environments.alfworld.generated import GeneratedGames

        return GeneratedGames(section, seed)
    return ReleasedGames(section)
