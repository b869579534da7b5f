"""Plays the training tasks of SAC with the policy that is being trained, in the environment's own processes."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from statistics import fmean
from typing import Any, NamedTuple

import torch

from retroformer.agents.actors import actor_kind, actor_kinds
from retroformer.agents.arms.baselines import NoReflector
from retroformer.config.experiment import Experiment
from retroformer.environments.pool import EnvironmentPool
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, EnvironmentFailure, InfrastructureFailure
from retroformer.method.protocols import Agent, Move, OfferedActions, Scene
from retroformer.method.records import Memory, Outcome, Task, Trajectory, Usage
from retroformer.method.rollout import rollout
from retroformer.models.prompt_template import encode, mark

from ..rl.sampling import numbers_of_update
from ..shared_prompt.packed import Group
from .models import ActorCritic, log_policy, written_greedily
from .sac import ActorStep, PlayedEpisode

Offers = Callable[[Any, Scene], OfferedActions]


class Choice(NamedTuple):
    """What the policy did in one state."""

    state: Group
    embedding_H: torch.Tensor
    action: int
    entropy: float
    same_as_served: bool
    """True if a server that takes the most likely token at each place writes the most likely action."""


class LearningActor:
    """Actor that draws its actions from the policy, and records its choices."""

    def __init__(
        self, model: ActorCritic, tokenizer: Any, offered: Callable[[Scene], OfferedActions], max_length: int
    ) -> None:
        self._model, self._tokenizer, self._offered, self._max_length = model, tokenizer, offered, max_length
        self.choices: list[Choice] = []
        """The choices of the current attempt."""

    async def act(self, scene: Scene) -> Move:
        """Draw the next action by torch's random state.

        Raises:
            ConfigError: the scene has no possible actions, or one is too long together with its prompt.
        """
        offered = self._offered(scene)
        state = self._tokens(offered)
        self._model.eval()
        with torch.no_grad():
            log_probs_BAT, admitted_BA = self._model.action_log_probs([state])
        log_policy_A = log_policy(log_probs_BAT, admitted_BA)[0].cpu()
        policy_A = log_policy_A.exp()
        embedding_H = self._model.state_embedding(state.prompt).cpu()
        action, entropy = int(torch.multinomial(policy_A, 1)), float(-(policy_A * log_policy_A).sum())
        same_as_served = written_greedily(state.responses, log_probs_BAT[0]) == int(log_policy_A.argmax())
        self.choices.append(Choice(state, embedding_H, action, entropy, same_as_served))
        usage = Usage(calls=1, prompt_tokens=len(state.prompt), completion_tokens=len(state.responses[action]))
        return Move(action=offered.actions[action], usage=usage)

    def _tokens(self, offered: OfferedActions) -> Group:
        if not offered.continuations:
            raise ConfigError(
                "SAC needs an environment that lists the possible actions, and a state of this one has none: set "
                "environment.name to another."
            )
        texts = (offered.prompt, *offered.continuations)
        prompt, *actions = (encode(self._tokenizer, mark(self._tokenizer, text)) for text in texts)
        state = Group(prompt, actions)
        if state.longest > self._max_length:
            raise ConfigError(
                f"A prompt with its longest action has {state.longest} tokens, more than "
                f"train.max_length={self._max_length}: raise train.max_length, or lower loop.actions."
            )
        return state


class OnlinePlay:
    """Plays the task of each episode: the tasks in a random order, then again in another."""

    def __init__(
        self,
        runner: asyncio.Runner,
        pool: EnvironmentPool,
        actor: LearningActor,
        tasks: Sequence[Task],
        experiment: Experiment,
    ) -> None:
        self._runner, self._pool, self._actor, self._tasks = runner, pool, actor, tasks
        self._experiment, self._agent = experiment, Agent(actor, NoReflector())

    def __call__(self, episode: int) -> PlayedEpisode:
        """Play one attempt without advice.

        Raises:
            InfrastructureFailure: the environment failed, even in `loop.retries` retries.
            ConfigError: a state cannot be played.
        """
        random_state = torch.get_rng_state()
        for _ in range(1 + self._experiment.loop.retries):
            torch.set_rng_state(random_state)  # So that a retry draws what the attempt would have drawn.
            self._actor.choices = []
            trajectory = self._runner.run(self._play(self.task(episode)))
            if trajectory.outcome is not Outcome.INVALID:
                return _attempt(self._actor.choices, trajectory)
        raise InfrastructureFailure(
            f"Episode {episode + 1} could not be played: run the same command again to resume. The cause: "
            f"{trajectory.cause}"
        )

    def task(self, episode: int) -> Task:
        """Return the task of an episode, which is the same in every run."""
        (number,) = numbers_of_update("tasks", len(self._tasks), episode, 1, self._experiment.seed)
        return self._tasks[number]

    async def _play(self, task: Task) -> Trajectory:
        try:
            async with self._pool.episode(task) as episode:
                return await rollout(task, episode, self._agent, Memory(), self._experiment.loop)
        except EnvironmentFailure as failure:
            return Trajectory.invalid(task, str(failure))


@contextmanager
def online_play(
    experiment: Experiment, model: ActorCritic, tokenizer: Any, tasks: Sequence[Task]
) -> Iterator[OnlinePlay]:
    """Start the environment's process, yield what plays the episodes, and stop the process at the end.

    Raises:
        ServiceError: this machine cannot play these tasks.
    """
    section = experiment.environment
    extras(section).require_machine(section)
    offers = offers_of(experiment)
    actor = LearningActor(model, tokenizer, lambda scene: offers(section, scene), experiment.train.max_length)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            pool = EnvironmentPool(section, experiment.seed, 1)
            runner.run(stack.enter_async_context(pool))
            yield OnlinePlay(runner, pool, actor, tasks, experiment)
        finally:
            runner.run(stack.aclose())


def offers_of(experiment: Experiment) -> Offers:
    """Return the function that lists the possible actions for the config's actor.

    Raises:
        ConfigError: this actor does not choose among listed actions.
    """
    offers = actor_kind(experiment).offers
    if offers is None:
        able = [name for name, kind in actor_kinds(experiment).items() if kind.offers is not None]
        remedy = f"set actor.kind to {' or '.join(able)}" if able else "no actor of this environment does"
        raise ConfigError(
            f"SAC trains an actor that chooses among the possible actions, and actor.kind={experiment.actor.kind} does "
            f"not (departure 26): {remedy}."
        )
    return offers


def _attempt(choices: Sequence[Choice], trajectory: Trajectory) -> PlayedEpisode:
    last = len(choices) - 1
    played = zip(choices, trajectory.steps, strict=True)
    steps = [
        ActorStep(choice.state, choice.embedding_H, choice.action, step.reward, over=number == last)
        for number, (choice, step) in enumerate(played)
    ]
    facts = {
        "score": trajectory.episode_return,
        "solved": float(trajectory.outcome is Outcome.SUCCESS),
        "actions": float(len(steps)),
        "entropy_played": fmean(choice.entropy for choice in choices),
        "same_as_served": fmean(choice.same_as_served for choice in choices),
        "tokens_played": float(trajectory.usage.tokens),
    }
    return PlayedEpisode(steps, facts)
