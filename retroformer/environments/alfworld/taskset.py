"""Tasksets of games that a section of the experiment config describes."""

from typing import Protocol

from retroformer.environments.alfworld.environment import AlfworldEnvironment
from retroformer.environments.alfworld.game.released import ReleasedGames
from retroformer.environments.alfworld.section import Alfworld
from retroformer.records import Task


class AlfworldTaskset(Protocol):
    """Taskset of household games, with single games by id and the winning walkthrough of each."""

    def tasks(self) -> tuple[Task, ...]: ...

    def task(self, task_id: str) -> Task:
        """Return a game by id. Raises UnknownTask."""
        ...

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Return winning actions, in the configured grammar. Raises UnknownTask, EnvironmentFailure."""
        ...

    def environment(self) -> AlfworldEnvironment: ...


def taskset(section: Alfworld, seed: int = 0) -> AlfworldTaskset:
    """Return the games that a section describes; `seed` determines all generated worlds."""
    if section.source == "generated":
        from retroformer.environments.alfworld.game.generated import GeneratedGames

        return GeneratedGames(section, seed)
    return ReleasedGames(section)
