"""Runs PPO or GRPO as a stage: loads the earlier adapters, keeps checkpoints and curves, and publishes the policy.

`history` in metrics.json has the facts of every update, and the trackers have them as curves. Both algorithms:

- score: mean reward of a response. kl: divergence of a response from the SFT policy, in nats: the mean of sums over
  its tokens of k1. entropy: mean over the tokens, in nats.
- response_tokens, ended: mean length, and share that ended by itself. tokens: tokens read in a pass.
- alike, copied_from_attempt, restating, copied_from_instruction: see `train.rl.alarms`.
- alarm_collapse, alarm_length: 1 while they are on, see `train.rl.alarms`; `alarms` has a sentence for each of them.
- importance, truncated: of stored reflections, the mean weight of a token, and the share of tokens whose weight was cut
  at its bound; see `train.rl.rewards`.
- server_distance, server_kl: if a server generates the responses, see `train.rl.remote`; `drawn_by` names it.
- policy_loss, ratio, clip_fraction, ratio_furthest_from_1, gradient_norm: of the last pass over the batch.

PPO:

- reward_model_score: mean score, not scaled. kl_k3: as kl, of k3.
- value_loss: of the last pass. kl_from_writer: mean k3 per token between the policy that generated the batch and that
  of the last pass.
- explained_variance: of the returns by the value head before the update; 1 is perfect, 0 is as good as a constant.

GRPO:

- kl_loss: of the last pass. score_deviation: standard deviation of the rewards within the groups.
- score: of the responses drawn first, before any refill.
- equal_groups: number of groups with equal rewards, which do not count; refilled: number of groups drawn in place of
  such groups; left_out: number of responses without a reward. different_in_group: mean number of distinct responses in
  a group.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from retroformer.config.sections.train import Grpo, Ppo

from .. import processes
from ..adapter import Adapter
from ..base import load_base, load_tokenizer
from ..data.samples import Prompt, RatedGroup, prompt_ids
from ..loop import Facts, take
from ..plan.estimate import sampled_at_once
from ..preflight import preflight
from ..stage import Meter, Stage, after_updates, publish, refuse_missed_milestones, warn_if_still
from . import grpo, ppo
from .alarms import Describe, describer, first_alarms, with_alarms
from .checkpoint import Checkpoints
from .policy import SharedBase, make_optimizer
from .remote import RemoteSampler, responder
from .rewards import ModelScores, StoredGroups, score_scale
from .sampling import Respond, Responses, SamplingSettings, sampling_settings


class PolicyRun(NamedTuple):
    """Everything that the updates of a stage need, with the facts of the updates before a resumption."""

    meter: Meter
    model: SharedBase
    optimizer: torch.optim.Optimizer
    checkpoints: Checkpoints
    prompts: list[list[int]]
    draw: SamplingSettings
    history: list[Facts]
    describe: Describe
    answer: Respond


def train_by_ppo(stage: Stage, prompts: Sequence[Prompt], adapters: Mapping[str, Adapter]) -> None:
    """Train the adapter `sft` on `prompts` against the reward model `reward`, and publish it."""
    settings = stage.experiment.train.ppo
    run = _load(stage, settings, prompts, adapters)
    scale, first = score_scale(adapters["reward"]), len(run.history)
    updates = ppo.ppo(run.model, run.optimizer, run.prompts, settings, run.draw, scale, first, run.describe, run.answer)
    _take_and_publish(stage, settings, run, updates)


def train_by_grpo(
    stage: Stage,
    prompts: Sequence[Prompt],
    adapters: Mapping[str, Adapter],
    live: AbstractContextManager[grpo.Rewards | None] | None = None,
    groups: Sequence[RatedGroup] = (),
) -> None:
    """Train the adapter `sft` on `prompts` and publish it: by the scores of the adapter `reward`, by `live` rewards, or
    by stored reflections with their ratings, a group for each prompt.

    The main process computes all live rewards; in every other process `live` yields None.
    """
    settings = stage.experiment.train.grpo
    run = _load(stage, settings, prompts, adapters)
    own: grpo.Rewards | None = None
    if groups:
        own = stored = StoredGroups(groups, run.prompts, settings.group)
        run = run._replace(answer=stored.respond)
    elif live is None:
        own = ModelScores(run.model, score_scale(adapters["reward"]), run.draw.micro_batch_tokens)
    with live or nullcontext() as played:
        rewards, first = own or _from_main_process(played), len(run.history)
        updates = grpo.grpo(
            run.model, run.optimizer, run.prompts, rewards, settings, run.draw, first, run.describe, run.answer
        )
        _take_and_publish(stage, settings, run, updates)


def _from_main_process(played: grpo.Rewards | None) -> grpo.Rewards:
    """Return rewards that the main process computes by `played`, and sends to the others, where it is None."""

    def rewards(update: int, indices: Sequence[int], responses: Responses) -> Tensor:
        def rewarded(_: None) -> Tensor:
            assert played is not None, "the first item is the main process's"
            return played(update, indices, responses)

        (rewards_B,) = processes.each([None], rewarded)
        return rewards_B

    return rewards


def _load(stage: Stage, settings: Ppo | Grpo, prompts: Sequence[Prompt], adapters: Mapping[str, Adapter]) -> PolicyRun:
    """Tokenise the prompts, make the preflight, load the models, and resume from the newest checkpoint."""
    experiment, meter = stage.experiment, Meter()
    warn_if_still(stage, settings.updates * settings.epochs, stage.steps.learning_rate)
    tokenizer = load_tokenizer(experiment.train)
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    lengths = [len(row) + experiment.reflector.max_new_tokens for row in ids]
    longest = max(lengths, default=0)
    preflight(stage, "prompts with their response", lengths, longest, adapters)
    sft, reward = adapters["sft"].folder, adapters["reward"].folder if "reward" in adapters else None
    checkpointing = experiment.train.gradient_checkpointing
    model = SharedBase(load_base(experiment.train), sft, reward, gradient_checkpointing=checkpointing)
    optimizer = make_optimizer(model, settings)
    checkpoints = checkpoints_of(stage, model, optimizer)
    history = checkpoints.restore()
    draw = sampling_settings(experiment, tokenizer, sampled_at_once(experiment, stage.name, longest))
    return PolicyRun(
        meter, model, optimizer, checkpoints, ids, draw, history, describer(tokenizer, prompts, ids), responder(stage)
    )


def checkpoints_of(stage: Stage, model: SharedBase, optimizer: torch.optim.Optimizer) -> Checkpoints:
    """Return the checkpoints of a stage that trains a policy by `optimizer`."""
    parts = {"value_head": model.value_head, "optimizer": optimizer}
    return Checkpoints(stage.checkpoints, model.language_model, parts)


def _take_and_publish(stage: Stage, settings: Ppo | Grpo, run: PolicyRun, updates: Iterator[Facts]) -> None:
    history, resumed_from = run.history, len(run.history)
    if isinstance(settings, Grpo):
        refuse_missed_milestones(stage, settings.milestones, resumed_from)

    def status() -> str:
        divergence = f"  kl {history[-1]['kl']:.2f}" if "kl" in history[-1] else ""
        return f"score {history[-1]['score']:+.2f}{divergence}"

    def publish_policy(stage: Stage, history: Sequence[Facts]) -> None:
        metrics = {
            "prompts": len(run.prompts),
            "updates": len(history),
            "resumed_from_update": resumed_from,
            "alarms": first_alarms(history),
            "history": history,
            **({"drawn_by": run.answer.identity} if isinstance(run.answer, RemoteSampler) else {}),
        }
        tokens = sum(int(facts["tokens"] * settings.epochs) for facts in history)
        publish(stage, run.model.save_policy, metrics | run.meter.read(tokens, resumed_from))

    def with_milestones(updates: Iterator[Facts]) -> Iterator[Facts]:
        for facts in updates:
            done = [*history, facts]
            if isinstance(settings, Grpo) and len(done) in settings.milestones:
                # Before the checkpoint of this update: a run that is killed in between repeats the update.
                publish_policy(after_updates(stage, len(done)), done)
            yield facts

    taken = with_milestones(with_alarms(updates, history))
    take(stage, "update", settings.updates, taken, history, run.checkpoints.save, status)
    publish_policy(stage, history)
