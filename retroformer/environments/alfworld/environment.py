"""ALFWorld environment, run as in the papers.

The reward is 1 once, at success. The answer to `think: ...` is `OK.`, and to an impossible command `Nothing happens.`;
both use up a step. The opening has no banner. In the grammar `put`, arrivals come without `You arrive at loc 12. `, as
ReAct's actors saw them; in `move` they keep `You arrive at desk 1. `.
"""

import re
from collections.abc import Callable

from retroformer.environments.alfworld.game.engine import Game, GameEngine
from retroformer.environments.alfworld.game.planner import Planner
from retroformer.environments.alfworld.game.rules import Home
from retroformer.errors import EnvironmentFailure
from retroformer.records import Task, Transition

THOUGHT_ANSWER = "OK."
"""Answer of the environment to `think: ...` (ReAct, section 4)."""

_THOUGHT = re.compile(r"\s*think\s*:", re.IGNORECASE)
_NUMBERED_ARRIVAL = re.compile(r"\AYou arrive at loc \d+\. ")


class AlfworldEnvironment:
    """Episodes of household games; `find` returns the game of a task, in the grammar to play."""

    def __init__(self, find: Callable[[Task], Game], max_steps: int, planner: Planner | Home) -> None:
        self._find = find
        self._max_steps = max_steps
        # The planner's library takes 34 MB, so an environment has one and plays all its episodes on it.
        self._engine = GameEngine(planner)
        self._steps = 0
        self._answer: Transition | None = None

    def reset(self, task: Task) -> Transition:
        """Start a game.

        Raises:
            UnknownTask: there is no such game.
            EnvironmentFailure: the game cannot be read.
        """
        self._answer, self._steps = None, 0
        _, _, room_and_task = self._engine.start(self._find(task)).partition("\n\n")
        self._answer = Transition(observation=room_and_task, choices=self._engine.commands)
        return self._answer

    def step(self, action: str) -> Transition:
        """Execute one action; after the end of an episode, repeat the last answer without its reward.

        Raises:
            EnvironmentFailure: no game was started.
        """
        if self._answer is None:
            raise EnvironmentFailure("No ALFWorld game is being played: reset the environment with a task first.")
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
