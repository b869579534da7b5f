"""Runs PPO as a stage: loads what the stages before made, keeps checkpoints and curves, publishes the policy."""

import json
from collections.abc import Sequence
from pathlib import Path

from retroformer.progress import line
from train import checkpoint
from train.audit import require_better_than_chance
from train.base import load_tokenizer
from train.dataset import Prompt, prompt_ids, require_length
from train.ppo import Sampling, make_optimizer, ppo
from train.shared_base import load_shared_base
from train.stage import METRICS, Meter, Stage, publish
from train.tracking import tracker


def improve_policy(stage: Stage, prompts: Sequence[Prompt], sft: Path, reward: Path) -> None:
    """Train the adapter in `sft` against the reward model in `reward` on `prompts`; publish it.

    Raises:
        ConfigError: a prompt and the longest response are longer than train.max_length together, or the reward model
            is no better than chance.
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
    measured = json.loads((reward / METRICS).read_text())
    sampling = Sampling(
        longest_response,
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
        experiment.seed,
        measured["train_score_mean"],
        # A reward model that scores everything alike would divide by nothing.
        max(measured["train_score_deviation"], 1e-3),
    )
    with tracker(stage) as track, line("train ppo", settings.updates, resumed_from) as progress:
        for facts in ppo(model, optimizer, ids, settings, sampling, resumed_from):
            history.append(facts)
            track(len(history), facts)
            progress.show(len(history), f"score {facts['score']:+.2f}  kl {facts['kl']:.2f}")
            if len(history) % page.checkpoint_steps == 0:
                checkpoint.save(stage.checkpoints, len(history), model, optimizer, history)
    tokens = sum(int(facts["tokens"]) for facts in history[resumed_from:]) * settings.epochs
    counts = {"prompts": len(prompts), "updates": len(history), "resumed_from_update": resumed_from}
    publish(stage, model.save_policy, counts | {"history": history} | meter.read(tokens))
