"""Discrete soft actor-critic on the actor: the online baseline of Retroformer (Table 2 and appendix C.2).

It has no reflector and no advice: the adapter that it trains is the actor's own. The loop plays a training task with
the current policy, adds the steps to a replay buffer, and updates two critics and the actor on batches of that buffer.
What differs from the paper, and why, is in docs/departures.md (26 to 30) and docs/results/sac.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from retroformer.config.sections.train import Sac

from ..base import trainable
from ..loop import clip_gradients
from ..losses import soft_critic_loss, soft_policy_loss, soft_targets, soft_values
from ..shared_prompt.packed import Group
from .models import ActorCritic, log_policy


class ActorStep(NamedTuple):
    """A state, the action chosen in it, and what followed."""

    state: Group
    embedding_H: Tensor
    """Embedding of the state, on the CPU."""
    action: int
    """Number of the chosen action among those of the state."""
    reward: float
    over: bool
    """True if the attempt ended with this action, for whatever reason."""


class Transitions(NamedTuple):
    """A batch of steps with the states that followed them."""

    steps: list[ActorStep]
    following: list[ActorStep]
    """The next step of the same attempt; at the end of an attempt the step itself, whose value is not used."""


class Replay:
    """All steps played so far, attempt after attempt. None is dropped: a run plays fewer steps than fit in memory."""

    def __init__(self) -> None:
        self._steps: list[ActorStep] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, attempt: Sequence[ActorStep]) -> None:
        """Add the steps of one finished attempt.

        Raises:
            ValueError: its last step is not marked as its end, so the next attempt would seem to continue it.
        """
        if not attempt or not attempt[-1].over:
            raise ValueError("The last step of an attempt must be over.")
        self._steps += attempt

    def draw(self, count: int) -> Transitions:
        """Draw transitions uniformly with replacement, from torch's random state."""
        numbers = torch.randint(len(self._steps), (count,)).tolist()
        steps = [self._steps[number] for number in numbers]
        following = [
            step if step.over else self._steps[number + 1] for number, step in zip(numbers, steps, strict=True)
        ]
        return Transitions(steps, following)

    def state_dict(self) -> dict[str, Any]:
        """Return all steps in the plain types that a checkpoint may hold."""
        return {
            "prompts": [step.state.prompt for step in self._steps],
            "actions": [step.state.responses for step in self._steps],
            "embeddings": torch.stack([step.embedding_H for step in self._steps]) if self._steps else torch.empty(0),
            "chosen": [step.action for step in self._steps],
            "rewards": [step.reward for step in self._steps],
            "over": [step.over for step in self._steps],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the steps of this `state`."""
        tokens = [Group(prompt, actions) for prompt, actions in zip(state["prompts"], state["actions"], strict=True)]
        columns = (tokens, state["embeddings"].cpu(), state["chosen"], state["rewards"], state["over"])
        self._steps = [ActorStep(*step) for step in zip(*columns, strict=True)]


BATCH_SIZE, MICRO_BATCH_SIZE = 8, 4
"""Environment steps of an update, and those in memory at once."""
GAMMA = 0.99
"""Discount factor between actions."""
ALPHA = 0.02
"""Entropy coefficient: reward for a nat of the policy's entropy. A solved task is worth 1 in all."""
POLYAK = 0.95
"""Share that the target critics keep of themselves in each update; the rest comes from the critics."""
STEPS_PER_UPDATE = 10
"""Number of environment steps for each update of critics and actor."""


class Optimizers(NamedTuple):
    """Adam over the actor's adapter, and Adam over the critics."""

    actor: torch.optim.Optimizer
    critics: torch.optim.Optimizer


class PlayedEpisode(NamedTuple):
    """The steps of one episode, and its facts."""

    steps: list[ActorStep]
    facts: Mapping[str, float]


Play = Callable[[int], PlayedEpisode]
"""Plays the task of an episode with the current policy, sampling by torch's random state."""


def make_optimizers(model: ActorCritic, settings: Sac) -> Optimizers:
    """Return the optimisers; their learning rate is constant."""
    return Optimizers(
        torch.optim.Adam(trainable(model.language_model), lr=settings.learning_rate),
        torch.optim.Adam(model.critics.parameters(), lr=settings.learning_rate),
    )


def sac(
    model: ActorCritic, optimizers: Optimizers, replay: Replay, play: Play, most: int, seed: int, done: int = 0
) -> Iterator[dict[str, float]]:
    """Train actor and critics for `most` episodes; yield the facts of each.

    `done` episodes were played before a checkpoint, and `replay` holds their steps. Every episode sets its own seed, so
    a resumed run repeats an unbroken one.
    """
    for episode in range(done, most):
        torch.manual_seed(seed * 1_000_003 + episode)
        # Step 1. The actor plays a task with its current policy; the buffer keeps what it did.
        before = len(replay)
        attempt = play(episode)
        replay.add(attempt.steps)
        # Step 2. Critics and actor learn from batches of everything that was played.
        updates = due(before, len(replay), STEPS_PER_UPDATE)
        facts = [update(model, optimizers, replay.draw(BATCH_SIZE), ALPHA, POLYAK) for _ in updates]
        means = {name: fmean(taken[name] for taken in facts) for name in facts[0]} if facts else {}
        tokens = sum(taken["tokens"] for taken in facts)
        yield {**attempt.facts, "env_steps": len(replay), "updates": len(facts), **means, "tokens": tokens}


def due(before: int, after: int, every: int) -> range:
    """Return the updates that are due after an episode in which the buffer grew from `before` to `after` steps."""
    if after < BATCH_SIZE:
        return range(0)
    return range(before // every, after // every)


def update(
    model: ActorCritic, optimizers: Optimizers, batch: Transitions, alpha: float, polyak: float
) -> dict[str, float]:
    """Take one step with the critics and one with the actor; return its facts."""
    steps, following = batch
    micro_batches = [slice(first, first + MICRO_BATCH_SIZE) for first in range(0, len(steps), MICRO_BATCH_SIZE)]
    # Step 1. The critics' targets: the reward, and the soft value of the next state under the current policy.
    model.eval()
    next_values_B = torch.cat([next_values(model, following[rows], alpha) for rows in micro_batches])
    rewards_B = torch.tensor([step.reward for step in steps], device=model.device)
    over_B = torch.tensor([step.over for step in steps], device=model.device)
    targets_B = soft_targets(rewards_B, next_values_B, over_B, GAMMA)
    # Step 2. Both critics move towards the targets.
    model.train()
    q_CB = torch.cat([chosen_values(model, steps[rows]) for rows in micro_batches], dim=1)
    critic_loss = soft_critic_loss(q_CB, targets_B).mean()
    critic_loss.backward()  # type: ignore[no-untyped-call]
    _take_step(optimizers.critics, model.critics)
    # Step 3. The actor moves towards actions that the lower critic values, and towards entropy.
    losses_B, entropies_B = list[float](), list[float]()
    for rows in micro_batches:
        loss_B, entropy_B = actor_losses(model, steps[rows], alpha)
        (loss_B.sum() / len(steps)).backward()  # type: ignore[no-untyped-call]
        losses_B += loss_B.tolist()
        entropies_B += entropy_B.tolist()
    norm = _take_step(optimizers.actor, model.language_model)
    # Step 4. The targets follow the critics.
    follow(model, polyak)
    return {
        "critic_loss": float(critic_loss.detach()),
        "policy_loss": fmean(losses_B),
        "entropy": fmean(entropies_B),
        "q": float(q_CB.detach().mean()),
        "gradient_norm": norm,
        "tokens": sum(step.state.length for step in (*steps, *following)),
    }


@torch.no_grad()
def next_values(model: ActorCritic, following: Sequence[ActorStep], alpha: float) -> Tensor:
    """Return the soft values of states under the current policy and the lower target critic, (B,)."""
    log_policy_BA = log_policy(*model.action_log_probs([step.state for step in following]))
    q_BA = values(model.target_critics, critic_inputs(model, following)).amin(dim=0)
    return soft_values(q_BA, log_policy_BA, alpha)


def chosen_values(model: ActorCritic, steps: Sequence[ActorStep]) -> Tensor:
    """Return the values of the actions that were chosen, by each critic, (C, B)."""
    chosen_B = torch.tensor([step.action for step in steps], device=model.device)
    inputs_BAX = critic_inputs(model, steps)
    return values(model.critics, inputs_BAX[torch.arange(len(steps), device=model.device), chosen_B])


def actor_losses(model: ActorCritic, steps: Sequence[ActorStep], alpha: float) -> tuple[Tensor, Tensor]:
    """Return the policy loss of each state, (B,), and the entropy of the policy in it, (B,)."""
    with torch.no_grad():
        q_BA = values(model.critics, critic_inputs(model, steps)).amin(dim=0)
    log_policy_BA = log_policy(*model.action_log_probs([step.state for step in steps]))
    entropy_B = soft_values(torch.zeros_like(q_BA), log_policy_BA.detach(), alpha=1.0)
    return soft_policy_loss(q_BA, log_policy_BA, alpha), entropy_B


def critic_inputs(model: ActorCritic, steps: Sequence[ActorStep]) -> Tensor:
    """Return the embeddings of each state beside those of its actions, (B, A, X) with X = 2H."""
    actions_BAH = model.action_embeddings([step.state for step in steps])
    states_BH = torch.stack([step.embedding_H for step in steps]).to(model.device)
    return torch.cat([states_BH[:, None].expand_as(actions_BAH), actions_BAH], dim=2)


def values(critics: nn.ModuleList, inputs_X: Tensor) -> Tensor:
    """Return Q by each critic: (C, ...) of inputs (..., X)."""
    return torch.stack([critic(inputs_X)[..., 0] for critic in critics])


@torch.no_grad()
def follow(model: ActorCritic, polyak: float) -> None:
    """Move the target critics towards the critics: target = polyak * target + (1 - polyak) * critic."""
    pairs = zip(model.target_critics.parameters(), model.critics.parameters(), strict=True)
    for target, online in pairs:
        target.lerp_(online, 1 - polyak)


def _take_step(optimizer: torch.optim.Optimizer, module: nn.Module) -> float:
    """Clip the gradients, take the step, and return the norm before clipping."""
    norm = clip_gradients(module, module.parameters(), "in an update")
    optimizer.step()
    optimizer.zero_grad()
    return norm
