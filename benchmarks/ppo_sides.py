"""The trainers that `benchmarks/ppo.py` compares, each made from the same page, adapters and prompts."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from peft import PeftModel
from torch import nn

from retroformer.config import Experiment
from train.base import keep_trainables_in_fp32, load_base, load_tokenizer

PROMPTS, SFT, REWARD = "prompts.json", "sft", "reward"


class Ready(NamedTuple):
    """A loaded trainer."""

    models: Iterable[nn.Module]
    """All whose weights are in memory."""
    language_model: Any
    """That of the policy, from which responses are drawn."""
    train: Callable[[Callable[[], None]], None]
    """Takes all updates, and calls its argument at the end of each."""


def ours(experiment: Experiment, folder: Path) -> Ready:
    """The loop of `python -m train ppo`."""
    from train.ppo import make_optimizer, ppo
    from train.sampling import draw_of
    from train.shared_base import load_shared_base

    page, settings = experiment.train, experiment.train.ppo
    model = load_shared_base(page, folder / SFT, folder / REWARD)
    language_model: Any = model.language_model.get_base_model()
    # No token is the end of a turn, so every response is as long as it may be.
    draw = draw_of(experiment, settings, load_tokenizer(page))._replace(eos_id=language_model.config.vocab_size)
    optimizer = make_optimizer(model, settings)
    prompts = json.loads((folder / PROMPTS).read_text())

    def train(lap: Callable[[], None]) -> None:
        for _ in ppo(model, optimizer, prompts, settings, draw):
            lap()

    return Ready([model], language_model, train)


def trl(experiment: Experiment, folder: Path) -> Ready:
    """TRL's trainer: policy and reference on one base, value and reward model on one of their own each."""
    policy, value, reward = _policy(experiment, folder), _scorer(experiment, folder), _scorer(experiment, folder)
    return _theirs(experiment, folder, policy, value, reward.requires_grad_(False))


def lean(experiment: Experiment, folder: Path) -> Ready:
    """The same with one set of frozen weights, and a value model of which the head alone is trained."""
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
    """A sequence classifier with the reward model's adapter inside, ready to be trained."""
    base = load_base(experiment.train, scores=True)
    # Unwrapped: the trunk that TRL finds in a peft model is the whole classifier, which would score twice.
    scorer: Any = PeftModel.from_pretrained(base, folder / REWARD, is_trainable=True).get_base_model()
    keep_trainables_in_fp32(scorer)
    # The one hook: hidden states are in bfloat16, and the head that is trained is not.
    scorer.score.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    return scorer


def share_frozen_weights(scorer: nn.Module, owner: nn.Module) -> None:
    """Let the weights of the scorer's trunk be those of `owner`, so that its own copies are freed."""
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
        vf_coef=settings.value_weight,
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
