"""ALFWorld as an actor meets it, driven as in the papers.

A reward of 1 comes once, at success. `think: ...` is answered `OK.`; like an impossible command, answered `Nothing
happens.`, it uses up a step. The opening comes without the banner. In the grammar `put`, arrivals come without
`You arrive at loc 12. `, as ReAct's actors saw them; in `move` they keep `You arrive at desk 1. `.
"""

import re
from collections.abc import Callable

from retroformer.environments.alfworld.engine import Engine, Game
from retroformer.errors import EnvironmentFailure
from retroformer.records import Task, Transition

THOUGHT_ANSWER = "OK."
"""What the environment says to `think: ...` (ReAct, section 4)."""

_THOUGHT = re.compile(r"\s*think\s*:", re.IGNORECASE)
_NUMBERED_ARRIVAL = re.compile(r"\AYou arrive at loc \d+\. ")


class AlfworldEnvironment:
    """Episodes of household games; `find` gives the game of a task, told in the grammar to play."""

    def __init__(self, find: Callable[[Task], Game], max_steps: int) -> None:
        self._find = find
        self._max_steps = max_steps
        # The planner's library takes 34 MB, so an environment has one and plays all its episodes on it.
        self._engine = Engine()
        self._steps = 0
        self._answer: Transition | None = None

    def reset(self, task: Task) -> Transition:
        """Start a game.

        Raises:
            UnknownTask: no such game.
            EnvironmentFailure: the game cannot be read.
        """
        self._answer, self._steps = None, 0
        _, _, room_and_task = self._engine.start(self._find(task)).partition("\n\n")
        self._answer = Transition(observation=room_and_task, choices=self._engine.commands)
        return self._answer

    def step(self, action: str) -> Transition:
        """Do one action; after the end of an episode the last answer is repeated, without its reward.

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
