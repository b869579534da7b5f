"""An agent that is not ours, as an environment of one action: the advice. The answer to it is a whole attempt."""

from typing import Any

from retroformer.attempt_result import Score, read_result
from retroformer.environments.agent.callers import Caller
from retroformer.errors import EnvironmentFailure, UnknownTask
from retroformer.protocols import Move, Scene
from retroformer.records import Task, Transition
from retroformer.task_file import opening_of


class AgentEnvironment:
    """Episodes of one attempt each."""

    def __init__(self, tasks: dict[str, dict[str, Any]], agent: Caller, score: Score | None) -> None:
        self._tasks, self._agent, self._score = tasks, agent, score
        self._task: dict[str, Any] | None = None

    def reset(self, task: Task) -> Transition:
        """Show the text of the task. Raises UnknownTask."""
        if task.id not in self._tasks:
            raise UnknownTask(f"No task {task.id!r} in this split: --list prints the ids.")
        self._task = self._tasks[task.id]
        return Transition(observation=opening_of(self._task))

    def step(self, action: str) -> Transition:
        """Let the agent attempt the task with this advice; empty for none.

        Raises:
            EnvironmentFailure: the agent crashed, hung, or returned something that is not an attempt.
        """
        if self._task is None:
            raise EnvironmentFailure("No task was shown yet: reset comes before the first step.")
        returned = self._agent(self._task, action)
        try:
            result = read_result(returned, self._task, self._score)
        except ValueError as error:
            raise EnvironmentFailure(f"The agent's attempt cannot be read: {error}.") from error
        except Exception as error:  # The function that rates is the user's own.
            raise EnvironmentFailure(f"The score raised {type(error).__name__}: {error}.") from error
        return Transition(
            observation=result.output,
            reward=result.score,
            terminated=True,
            success=result.score == 1,
            steps=result.steps,
            messages=result.messages,
            usage=result.usage,
        )


class AdviceCarrier:
    """Actor whose only action is the advice in its memory."""

    async def act(self, scene: Scene) -> Move:
        return Move(action="\n".join(scene.memory.reflections))
