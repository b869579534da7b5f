"""Exports an experiment's tasks as a verifiers environment, which can train and evaluate models on them.

The prompt is a chat with the instruction and examples of the config's prompt pack, without advice, whatever its
`actor.kind` is; the reward is the return of the attempt.
"""

import asyncio
import math
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import verifiers
from datasets import Dataset
from verifiers.errors import InfraError
from verifiers.rubrics.rubric import Rubric
from verifiers.types import UserMessage

from retroformer.agents.actors import REACT, actor_kind, command, parse
from retroformer.coach.background import Background
from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.config.parts import chosen_tasks
from retroformer.environments.pool import EnvironmentPool, PooledEpisode
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, InfrastructureFailure
from retroformer.method.prompts import conversation_prompt, load_pack
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Task, Transition

_PROCESSES = 2
"""Processes of the environment of a split."""
_EPISODE, _REWARDS = "retroformer_episode", "retroformer_rewards"

Result = TypeVar("Result")


class Pools:
    """Processes for the tasks of each split, started when they are needed, and used from a loop of their own."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._pools: dict[str, EnvironmentPool] = {}
        self._background: Background | None = None

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await the work in the thread with our loop. Raises verifiers.InfraError for our failures."""
        self._background = self._background or Background()
        try:
            return await asyncio.wrap_future(self._background.start(work))
        except InfrastructureFailure as error:
            raise InfraError(str(error)) from error

    async def begin(self, task: Task) -> tuple[AsyncExitStack, PooledEpisode, Transition]:
        """Start an episode; return what ends it, the episode and its opening. Raises EnvironmentFailure."""
        if task.split not in self._pools:
            experiment = self._experiment
            section = experiment.environment.model_copy(update={"split": task.split})
            self._pools[task.split] = EnvironmentPool(section, experiment.seed, _PROCESSES)
        async with AsyncExitStack() as stack:
            episode = await stack.enter_async_context(self._pools[task.split].episode(task))
            opening = await episode.reset()
            return stack.pop_all(), episode, opening

    async def stop(self) -> None:
        """Stop the processes; a later episode starts new ones."""
        if self._background is not None:
            await self.run(self._stop())
            background, self._background = self._background, None
            background.close()

    async def _stop(self) -> None:
        for pool in self._pools.values():
            await pool.__aexit__(None, None, None)
        self._pools = {}


class ExportedEnvironment(verifiers.MultiTurnEnv):  # type: ignore[misc]  # verifiers is not type-checked here.
    """Environment of verifiers whose every turn is one action.

    Each task is shown when its rollout begins, so no task is opened for the dataset.
    """

    def __init__(self, config: str, overrides: tuple[str, ...], tasks: int | None) -> None:
        """Read a config. Raises ConfigError, MissingInput."""
        self._experiment = experiment = load(Path(config), overrides)
        if not actor_kind(experiment).asks_model:
            raise ConfigError(
                f"The {experiment.actor.kind} actor is a program, so verifiers cannot play in its place: set "
                "actor.kind."
            )
        extras(experiment.environment).require_machine(experiment.environment)
        self._pack = load_pack(experiment.actor.prompts, experiment.environment.name)
        self._pools = Pools(experiment)
        super().__init__(
            dataset=lambda: self._dataset(experiment.environment.split, tasks),
            eval_dataset=lambda: self._dataset(experiment.held_out_splits[0], tasks),
            rubric=Rubric(funcs=[episode_return]),
            max_turns=experiment.environment.max_steps,
        )

    async def setup_state(self, state: Any) -> Any:
        """Start the episode and put its opening into the prompt. Raises verifiers.InfraError."""
        task = Task.model_validate(state["info"])
        state[_REWARDS] = []
        stack, episode, opening = await self._pools.run(self._pools.begin(task))
        state[_EPISODE] = stack, episode
        scene = Scene(task=task, opening=opening.observation, steps=(), memory=Memory())
        state["prompt"] = [message.model_dump() for message in conversation_prompt(self._pack, scene)]
        return state

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        """Do the action of the last turn. Raises verifiers.InfraError."""
        action = self._action(str(messages[-1].content or ""))
        _, episode = state[_EPISODE]
        transition = await self._pools.run(episode.step(action))
        state[_REWARDS].append(transition.reward)
        answer = [UserMessage(content=transition.observation)]
        if transition.over:
            state["final_env_response"] = answer
        return answer

    @verifiers.cleanup  # type: ignore[untyped-decorator]
    async def leave_episode(self, state: Any) -> None:
        """Let the process play another episode."""
        if (playing := state.get(_EPISODE)) is not None:
            state[_EPISODE] = None
            stack, _ = playing
            await self._pools.run(stack.aclose())

    @verifiers.teardown  # type: ignore[untyped-decorator]
    async def stop_processes(self) -> None:
        """Stop the processes of the tasks' environment."""
        await self._pools.stop()

    def _action(self, text: str) -> str:
        if self._experiment.actor.kind != REACT:
            return text.strip()
        return command(text) if self._pack.layout == "commands" else parse(text)[1]

    def _dataset(self, split: str, tasks: int | None) -> Any:
        listed = [task.model_dump() for task in chosen_tasks(self._experiment, tasks, (split,))]
        # verifiers wants a prompt in every row; the opening replaces it when the rollout begins.
        rows = [{"prompt": [{"role": "user", "content": task["id"]}], "info": task} for task in listed]
        return Dataset.from_list(rows)


def episode_return(state: Any) -> float:
    """Return the sum of the rewards of an attempt."""
    return math.fsum(state[_REWARDS])
