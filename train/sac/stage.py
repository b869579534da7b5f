"""Runs SAC as a stage: loads the actor, plays and learns, keeps checkpoints and curves, and publishes the actor.

`history` in metrics.json has the facts of every episode, and the trackers have them as curves:

- score, solved, actions: return of the attempt, 1 if it solved the task, number of actions.
- entropy_played: mean entropy of the policy in the states of the attempt, in nats.
- same_as_served: share of these states in which greedy decoding token by token gives the most likely action.
- tokens_played: tokens of the prompts and of the chosen actions. tokens: tokens read in the updates.
- env_steps: number of steps in the buffer. updates: number of updates after the episode.
- critic_loss, policy_loss, entropy, q, gradient_norm: means over these updates; missing without an update. q is the
  mean value of the chosen actions, gradient_norm that of the actor before clipping.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from retroformer.config.conditions import conditions
from retroformer.config.experiment import Experiment
from retroformer.method.records import Task

from ..adapter import Adapter
from ..base import load_base, load_tokenizer
from ..loop import take
from ..preflight import preflight
from ..rl.checkpoint import Checkpoints
from ..stage import Meter, Stage, publish
from .models import ActorCritic
from .play import online_play
from .sac import Replay, make_optimizers, sac

SHOWN_EPISODES = 20
"""Number of last episodes whose mean success the progress line shows."""


def facts_of_play(experiment: Experiment, tasks: Sequence[Task]) -> list[Any]:
    """Return everything about the training tasks and how they are played that determines the result."""
    stored = conditions(experiment)
    played = {name: stored[name] for name in ("environment", "versions")}
    limits = {name: stored["loop"][name] for name in ("repetitions", "actions")}
    return [played, limits, experiment.actor.kind, [task.id for task in tasks]]


def train_by_sac(stage: Stage, tasks: Sequence[Task], adapters: Mapping[str, Adapter]) -> None:
    """Train the actor on `tasks`, starting from the adapter `start` of `adapters` or a fresh one, and publish it.

    Raises:
        ConfigError: the tasks or their prompts do not suit SAC.
        InfrastructureFailure: a task could not be played; the episodes before it are in a checkpoint.
        NotFinite: an update has infinite numbers or NaN; the checkpoints are those that a kill would have left.
    """
    experiment, train, meter = stage.experiment, stage.experiment.train, Meter()
    tokenizer = load_tokenizer(train)
    preflight(stage, "samples", [], 0, adapters)
    start = adapters["start"].folder if "start" in adapters else None
    torch.manual_seed(experiment.seed)
    model = ActorCritic(load_base(train), train.lora, start, gradient_checkpointing=train.gradient_checkpointing)
    optimizers, replay, most = make_optimizers(model, train.sac), Replay(), train.sac.episodes
    parts = {
        "critics": model.critics,
        "target_critics": model.target_critics,
        "actor_optimizer": optimizers.actor,
        "critic_optimizer": optimizers.critics,
        "replay": replay,
    }
    checkpoints = Checkpoints(stage.checkpoints, model.language_model, parts)
    history = checkpoints.restore()
    resumed_from = len(history)

    def status() -> str:
        solved = fmean(shown["solved"] for shown in history[-SHOWN_EPISODES:])
        return f"solved {solved:.2f}  steps {len(replay)}"

    with online_play(experiment, model, tokenizer, tasks) as play:
        episodes = sac(model, optimizers, replay, play, most, experiment.seed, resumed_from)
        take(stage, "episode", most, episodes, history, checkpoints.save, status)
        played = {play.task(episode).id for episode in range(len(history))}
    quarter = max(1, len(history) // 4)
    metrics = {
        "episodes": len(history),
        "resumed_from_episode": resumed_from,
        "env_steps": len(replay),
        "updates": int(sum(facts["updates"] for facts in history)),
        "tokens_played": int(sum(facts["tokens_played"] for facts in history)),
        "solved_first_quarter": fmean(facts["solved"] for facts in history[:quarter]),
        "solved_last_quarter": fmean(facts["solved"] for facts in history[-quarter:]),
        "tasks": sorted(played),
        "history": history,
    }
    tokens = int(sum(facts["tokens"] for facts in history))
    publish(stage, model.save_policy, metrics | meter.read(tokens, resumed_from))
