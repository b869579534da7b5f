"""ALFWorld's config section, and its environment, run as in the papers.

The reward is 1 once, at success. The answer to `think: ...` is `OK.`, and to an impossible command `Nothing happens.`;
both use up a step. In the grammar `put`, arrivals come without `You arrive at loc 12. `, as ReAct's actors saw them.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from retroformer.config.sections.base import Positive
from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.engine import Game, GameEngine
from retroformer.environments.alfworld.planner import Planner
from retroformer.environments.alfworld.python_planner import PythonPlanner
from retroformer.environments.section import EnvironmentSection, Wording
from retroformer.environments.tasksets import not_reset
from retroformer.errors import ConfigError
from retroformer.method.records import Task, Transition


class Alfworld(EnvironmentSection):
    success: ClassVar[str] = "the game is won"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    packages: ClassVar[tuple[str, ...]] = ("alfworld", "textworld")
    name: Literal["alfworld"] = "alfworld"
    data: Path | None = None
    """Folder as in ALFWORLD_DATA, or of SPLIT.tar.zst packs; default: $ALFWORLD_DATA, else `alfworld-download`'s."""
    split: str = "train"
    """Split: train, valid_seen or valid_unseen; train_rooms, dev_rooms or test_rooms for the train games by room; for
    generated games train or held_out."""
    source: Literal["released", "generated"] = "released"
    """Source of the games: the official release, or our own unlimited seeded generator."""
    grammar: Literal["put", "move"] = "move"
    """Action grammar: `put X in/on Y` of the papers, or `move X to Y` of alfworld >= 0.4."""
    task_types: tuple[Literal["look", "pick", "clean", "cool", "heat", "two"], ...] = ()
    """Task types to play; empty means all six."""
    receptacles: Annotated[int, Field(ge=6, le=40)] = 12
    """Number of places in a generated room; more make the search longer."""
    wording: Wording = "demonstrated"
    """Words of advice that a program writes. demonstrated: those that the packaged actor was trained with; unseen:
    others; either: each piece of advice is in one of the two, drawn at random."""
    max_steps: Positive = 50
    """Actions after which an episode is truncated (50 in the papers)."""

    @property
    def seeded_tasks(self) -> bool:
        """True for generated games, which are drawn by the seed."""
        return self.source == "generated"


THOUGHT_ANSWER = "OK."
"""Answer of the environment to `think: ...` (ReAct, section 4)."""

_THOUGHT = re.compile(r"\s*think\s*:", re.IGNORECASE)
_NUMBERED_ARRIVAL = re.compile(r"\AYou arrive at loc \d+\. ")


class AlfworldEnvironment:
    """Episodes of household games; `find` returns the game of a task, in the grammar to play."""

    def __init__(self, find: Callable[[Task], Game], max_steps: int, planner: Planner | PythonPlanner) -> None:
        self._find, self._max_steps = find, max_steps
        # The planner's library takes 34 MB, so an environment has one and plays all its episodes on it.
        self._engine = GameEngine(planner)
        self._answer: Transition | None = None

    def reset(self, task: Task) -> Transition:
        """Start a game. Raises UnknownTask, EnvironmentFailure."""
        self._answer, self._steps = None, 0
        _, _, room_and_task = self._engine.start(self._find(task)).partition("\n\n")
        self._answer = Transition(observation=room_and_task, choices=self._engine.commands)
        return self._answer

    def step(self, action: str) -> Transition:
        """Execute one action; after the end of an episode, repeat the last answer without its reward.

        Raises EnvironmentFailure.
        """
        if self._answer is None:
            raise not_reset()
        if self._answer.over:
            return self._answer.model_copy(update={"reward": 0.0})
        self._steps += 1
        answer = THOUGHT_ANSWER if _THOUGHT.match(action) else self._engine.do(action)
        won = self._engine.won
        self._answer = Transition(
            observation=_NUMBERED_ARRIVAL.sub("", answer),
            reward=float(won),
            terminated=won,
            truncated=not won and self._steps >= self._max_steps,
            success=won,
            choices=() if won else self._engine.commands,
        )
        return self._answer


class AlfworldTaskset(Protocol):
    """Taskset of household games, with the winning walkthrough of each."""

    def tasks(self) -> tuple[Task, ...]: ...

    def walkthrough(self, task: Task) -> tuple[str, ...]:
        """Return winning actions, in the configured grammar. Raises UnknownTask, EnvironmentFailure."""
        ...

    def environment(self) -> AlfworldEnvironment: ...


def check_grammar(taskset: AlfworldTaskset, example_actions: Sequence[str]) -> None:
    """Check before a run that the actions in the actor's prompts are in the games' grammar. Raises ConfigError."""
    tasks = taskset.tasks()
    if not tasks:
        raise ConfigError("There is no ALFWorld game to play: check environment.split and environment.task_types.")
    # A game that can be won without putting anything down does not show its grammar.
    played = next(filter(None, (compact.grammar_of(taskset.walkthrough(task)) for task in tasks)), None)
    for action in example_actions:
        shown = compact.grammar_of([action.strip()])
        if shown and played and shown != played:
            raise ConfigError(
                f"The actor's prompts say {action!r}, but these games are played in the grammar {played!r}: "
                f"set environment.grammar={shown} or choose prompts written in {played!r}."
            )
