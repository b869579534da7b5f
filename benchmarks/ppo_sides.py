"""Trainers that `benchmarks/ppo.py` compares, built from the same config, adapters and prompts."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from peft import PeftModel
from torch import nn

from retroformer.experiment.config import Experiment
from train.base import keep_trainables_in_fp32, load_base, load_tokenizer
from train.stage_kinds import VALUE_WEIGHT

PROMPTS, SFT, REWARD = "prompts.json", "sft", "reward"


class Ready(NamedTuple):
    """Loaded trainer."""

    models: Iterable[nn.Module]
    """All models whose weights are in memory."""
    language_model: Any
    """Language model of the policy, which samples the responses."""
    train: Callable[[Callable[[], None]], None]
    """Function that runs all updates and calls its argument after each."""


def ours(experiment: Experiment, folder: Path) -> Ready:
    """Load the loop of `retroformer train ppo`."""
    from train.rl.optimizer import make_optimizer
    from train.rl.ppo import ppo
    from train.rl.sampling import draw_of
    from train.rl.shared_base import SharedBase

    config, settings = experiment.train, experiment.train.ppo
    model = SharedBase(load_base(config), folder / SFT, folder / REWARD)
    language_model: Any = model.language_model.get_base_model()
    # No token ends a turn, so every response has the maximum length.
    draw = draw_of(experiment, settings, load_tokenizer(config))._replace(eos_id=language_model.config.vocab_size)
    optimizer = make_optimizer(model, settings)
    prompts = json.loads((folder / PROMPTS).read_text())

    def train(lap: Callable[[], None]) -> None:
        for _ in ppo(model, optimizer, prompts, settings, draw):
            lap()

    return Ready([model], language_model, train)


def trl(experiment: Experiment, folder: Path) -> Ready:
    """Load TRL's trainer: policy and reference on one base, value and reward model each on their own base."""
    policy, value, reward = _policy(experiment, folder), _scorer(experiment, folder), _scorer(experiment, folder)
    return _theirs(experiment, folder, policy, value, reward.requires_grad_(False))


def lean(experiment: Experiment, folder: Path) -> Ready:
    """Load the same trainer with one set of frozen weights and a value model that trains only its head."""
    policy, value, reward = _policy(experiment, folder), _scorer(experiment, folder), _scorer(experiment, folder)
    for scorer in (value, reward):
        scorer.requires_grad_(False)
        share_frozen_weights(scorer, policy.get_base_model())
    value.score.requires_grad_(True)
    return _theirs(experiment, folder, policy, value, reward)


SIDES: Mapping[str, Callable[[Experiment, Path], Ready]] = {"ours": ours, "trl": trl, "lean": lean}


def _policy(experiment: Experiment, folder: Path) -> Any:
    base = load_base(experiment.train)
    policy: Any = PeftModel.from_pretrained(base, folder / SFT, "policy", is_trainable=True)
    policy.load_adapter(folder / SFT, "ref")
    policy.set_adapter("policy")
    keep_trainables_in_fp32(policy)
    return policy


def _scorer(experiment: Experiment, folder: Path) -> Any:
    """Return a trainable sequence classifier that contains the reward model's adapter."""
    base = load_base(experiment.train, scores=True)
    # Unwrap it: in a peft model, TRL takes the whole classifier for the trunk and would score twice.
    scorer: Any = PeftModel.from_pretrained(base, folder / REWARD, is_trainable=True).get_base_model()
    keep_trainables_in_fp32(scorer)
    # The only hook: hidden states are in bfloat16, the trained head is not.
    scorer.score.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    return scorer


def share_frozen_weights(scorer: nn.Module, owner: nn.Module) -> None:
    """Replace the weights of the scorer's trunk with those of `owner`, which frees its own copies."""
    theirs = dict(owner.named_modules())
    for name, module in scorer.named_modules():
        if "lora_" in name or name.startswith("score"):
            continue
        for key in module._parameters:
            module._parameters[key] = theirs[name]._parameters[key]
        if hasattr(module, "quant_state"):
            module.quant_state = module.weight.quant_state


def _theirs(experiment: Experiment, folder: Path, policy: Any, value: Any, reward: Any) -> Ready:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.experimental.ppo import PPOTrainer

    tokenizer = load_tokenizer(experiment.train)
    tokenizer.padding_side = "left"
    language_model = policy.get_base_model()
    language_model.generation_config.use_cache = True
    trainer: Any = PPOTrainer(
        args=_their_settings(experiment, folder),
        processing_class=tokenizer,
        model=policy,
        ref_model=None,
        reward_model=reward.eval(),
        value_model=value,
        train_dataset=Dataset.from_dict({"input_ids": json.loads((folder / PROMPTS).read_text())}),
    )

    def train(lap: Callable[[], None]) -> None:
        class EndOfUpdate(TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, *_: Any, **__: Any) -> None:
                lap()

        trainer.add_callback(EndOfUpdate())
        trainer.train()

    return Ready([policy, value, reward], language_model, train)


def _their_settings(experiment: Experiment, folder: Path) -> Any:
    from trl.experimental.ppo import PPOConfig

    settings = experiment.train.ppo
    return PPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=settings.micro_batch_size,
        gradient_accumulation_steps=settings.batch_size // settings.micro_batch_size,
        num_mini_batches=1,
        num_ppo_epochs=settings.epochs,
        total_episodes=settings.batch_size * settings.updates,
        local_rollout_forward_batch_size=settings.draw_batch_size or settings.micro_batch_size,
        response_length=experiment.reflector.max_new_tokens,
        stop_token=None,
        temperature=1.0,
        learning_rate=settings.learning_rate,
        kl_coef=settings.kl,
        kl_estimator="k1",
        cliprange=settings.clip,
        cliprange_value=settings.clip,
        vf_coef=VALUE_WEIGHT,
        gamma=settings.gamma,
        lam=settings.lam,
        model_adapter_name="policy",
        ref_adapter_name="ref",
        gradient_checkpointing=False,
        num_sample_generations=0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=experiment.seed,
    )
