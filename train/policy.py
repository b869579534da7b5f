"""Runs PPO as a stage: loads what the stages before made, keeps checkpoints and curves, publishes the policy.

`history` in metrics.json has the facts of every update, and the trackers have them as curves:

- reward_model_score, score: means over the responses, as the reward model gives it and as PPO is paid by it.
- kl, kl_k3: divergence of a response from the SFT policy, in nats: the mean of sums over its tokens of k1 and of k3.
- kl_weight: the weight of the divergence in this update.
- kl_from_writer: mean k3 of a token between the policy that wrote the batch and the one of the last pass over it.
- clip_fraction, ratio, ratio_furthest_from_1, policy_loss, value_loss, gradient_norm: of that last pass.
- explained_variance: of the returns by the value head, as it was before the update; 1 is perfect, 0 knows nothing.
- entropy: mean over the tokens, in nats. response_tokens, ended: mean length, and share that ended by itself.
- distinct_1, distinct_2, copied_from_attempt, restating, copied_from_instruction: see `train.repetition`.
- alarm_collapse, alarm_length: 1 while they ring, see `train.alarms`; `alarms` has a sentence for each that ever did.
- server_distance, server_kl: where a server draws, see `train.remote_sampling`; `drawn_by` says which.
- tokens, steps: tokens read in a pass, and optimiser steps; fewer than the page's epochs where `kl_stop` ended them.
"""

from collections.abc import Sequence
from pathlib import Path

from train import checkpoint
from train.audit import require_better_than_chance
from train.base import load_tokenizer
from train.dataset import Prompt, prompt_ids, require_length
from train.ppo import make_optimizer, ppo
from train.remote_sampling import drawn_by, responder
from train.repetition import describer
from train.sampling import draw_of
from train.score_scale import score_scale
from train.shared_base import load_shared_base
from train.stage import Meter, Stage, publish
from train.updates import take_updates


def improve_policy(stage: Stage, prompts: Sequence[Prompt], sft: Path, reward: Path) -> None:
    """Train the adapter in `sft` against the reward model in `reward` on `prompts`; publish it.

    Raises:
        ConfigError: a prompt and the longest response are longer than train.max_length together, or the reward model
            is no better than chance.
        EndpointFailure, ProvenanceError: a server is to draw, and does not, or not with the policy.
    """
    require_better_than_chance(reward, stage.experiment.train.weak_reward_model)
    experiment, meter = stage.experiment, Meter()
    page, settings = experiment.train, experiment.train.ppo
    tokenizer = load_tokenizer(page)
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    longest_response = experiment.reflector.max_new_tokens
    require_length([len(one) + longest_response for one in ids], page.max_length, "prompts with their response")
    model = load_shared_base(page, sft, reward)
    optimizer = make_optimizer(model, settings)
    history = checkpoint.restore(stage.checkpoints, model, optimizer)
    resumed_from = len(history)
    draw, scale = draw_of(experiment, settings, tokenizer), score_scale(reward)
    describe, answer = describer(tokenizer, prompts, ids), responder(stage, settings)
    updates = ppo(model, optimizer, ids, settings, draw, scale, tuple(history), describe, answer)
    told = {"prompts": len(prompts)} | take_updates(stage, settings, updates, history, model, optimizer)
    tokens = sum(int(facts["tokens"] * facts["steps"]) for facts in history[resumed_from:])
    publish(stage, model.save_policy, told | drawn_by(answer) | meter.read(tokens))
