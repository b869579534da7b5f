"""TRL's side of `benchmarks/training.py` for PPO: the trainer of TRL 1.12, in an environment of its own.

Its policy and reference share a base; its value and reward model have one each.
"""

from typing import Any

from datasets import Dataset
from peft import PeftModel
from transformers import TrainerCallback

from benchmarks.training_cases import REWARD, SFT, StageWork
from benchmarks.training_laps import Laps, Ready
from train.base import compute_dtype, keep_trainables_in_fp32, load_base, load_tokenizer
from train.rl.ppo import CLIP, GAMMA, LAMBDA, VALUE_WEIGHT


def load_trl_ppo(work: StageWork) -> Ready:
    from trl.experimental.ppo import PPOTrainer

    policy, value, reward = _policy(work), _scorer(work), _scorer(work)
    tokenizer = load_tokenizer(work.experiment.train)
    tokenizer.padding_side = "left"
    language_model = policy.get_base_model()
    language_model.generation_config.use_cache = True
    trainer: Any = PPOTrainer(
        args=_settings(work),
        processing_class=tokenizer,
        model=policy,
        ref_model=None,
        reward_model=reward.requires_grad_(False).eval(),
        value_model=value,
        # Each prompt once for each response.
        train_dataset=Dataset.from_dict(
            {"input_ids": [prompt for prompt in work.prompts for _ in range(work.case.responses)]}
        ),
    )

    def take(laps: Laps) -> list[float]:
        class LapCounter(TrainerCallback):  # type: ignore[misc]
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                laps.begin()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                laps.end()

        trainer.add_callback(LapCounter())
        language_model.generate = laps.timed("sampling", language_model.generate)
        trainer.train()
        return []

    return Ready(language_model, take)


def _policy(work: StageWork) -> Any:
    base = load_base(work.experiment.train)
    policy: Any = PeftModel.from_pretrained(base, work.folder / SFT, "policy", is_trainable=True)
    policy.load_adapter(work.folder / SFT, "ref")
    policy.set_adapter("policy")
    keep_trainables_in_fp32(policy)
    return policy


def _scorer(work: StageWork) -> Any:
    """Return a trainable sequence classifier that contains the reward model's adapter."""
    base = load_base(work.experiment.train, scores=True)
    # Unwrap it: in a peft model, TRL takes the whole classifier for the trunk and would score twice.
    scorer: Any = PeftModel.from_pretrained(base, work.folder / REWARD, is_trainable=True).get_base_model()
    keep_trainables_in_fp32(scorer)
    # TRL fails if hidden states are in bfloat16, as the trained head is not.
    scorer.score.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    return scorer


def _settings(work: StageWork) -> Any:
    from trl.experimental.ppo import PPOConfig

    settings, at_once = work.settings, work.sizes.trl_rows
    return PPOConfig(
        output_dir=str(work.folder / "trl"),
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=settings.batch_size // at_once,
        num_mini_batches=1,
        num_ppo_epochs=settings.epochs,
        total_episodes=settings.batch_size * settings.updates,
        local_rollout_forward_batch_size=at_once,
        response_length=work.experiment.reflector.max_new_tokens,
        stop_token=None,
        temperature=1.0,
        learning_rate=settings.learning_rate,
        kl_coef=settings.kl,
        kl_estimator="k1",
        cliprange=CLIP,
        cliprange_value=CLIP,
        vf_coef=VALUE_WEIGHT,
        gamma=GAMMA,
        lam=LAMBDA,
        model_adapter_name="policy",
        ref_adapter_name="ref",
        gradient_checkpointing=False,
        bf16=compute_dtype(work.experiment.train) == "bfloat16",
        num_sample_generations=0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        seed=work.experiment.seed,
    )
