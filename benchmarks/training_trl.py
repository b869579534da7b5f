"""TRL's side of `benchmarks/training.py`: its trainers for SFT, reward models, DPO and GRPO, with lean settings."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from datasets import Dataset
from trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

from benchmarks.training_cases import SFT, Work
from benchmarks.training_laps import Laps, Ready, StepLaps
from benchmarks.training_ours import share_of_even_tokens
from train.base import keep_trainables_in_fp32, load_tokenizer
from train.data.samples import IGNORED
from train.imitation import adapted
from train.reward import CENTRING, scorer
from train.shared_prompt.batches import training_batches
from train.stage import Stage
from train.trainer import trainer_settings


def theirs(work: Work) -> Ready:
    """Load the trainer of the case's stage."""
    torch.manual_seed(work.experiment.seed)
    return MAKERS[work.case.stage](work)


def _sft(work: Work) -> Ready:
    columns: dict[str, Any] = {"input_ids": [], "labels": []}
    for prompt, responses in _failures(work):
        for response in responses:
            columns["input_ids"].append(prompt + response)
            columns["labels"].append([IGNORED] * len(prompt) + response)
    lean = {"max_length": None, "packing": False, "dataset_kwargs": {"skip_prepare_dataset": True}}
    args = SFTConfig(**_arguments(work, work.sizes.their_rows), **lean)
    return _ready(SFTTrainer(model=_policy(work), args=args, **_data(work, columns)))


def _reward(work: Work) -> Ready:
    columns: dict[str, Any] = {"chosen_ids": [], "rejected_ids": []}
    for prompt, responses in _failures(work):
        for better, worse in work.case.pairs:
            columns["chosen_ids"].append(prompt + responses[better])
            columns["rejected_ids"].append(prompt + responses[worse])
    args = RewardConfig(
        **_arguments(work, work.sizes.their_rows // 2), max_length=None, center_rewards_coefficient=CENTRING
    )
    return _ready(RewardTrainer(model=scorer(work.experiment.train), args=args, **_data(work, columns)))


class DpoOnTokens(DPOTrainer):  # type: ignore[misc]
    """TRL's trainer without its tokenisation, which would change the tokens."""

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


def _dpo(work: Work) -> Ready:
    columns: dict[str, Any] = {"prompt_ids": [], "chosen_ids": [], "rejected_ids": []}
    for prompt, responses in _failures(work):
        for better, worse in work.case.pairs:
            columns["prompt_ids"].append(prompt)
            columns["chosen_ids"].append(responses[better])
            columns["rejected_ids"].append(responses[worse])
    args = DPOConfig(**_arguments(work, work.sizes.their_rows // 2), max_length=None, beta=work.settings.beta)
    return _ready(DpoOnTokens(model=_policy(work), args=args, **_data(work, columns)))


class GrpoOnTokens(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer on prompts that are numbers of token lists."""

    prompts: list[list[int]]

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.prompts[int(number)] for number in prompts], None, {}


def _grpo(work: Work) -> Ready:
    settings, accumulated = work.settings, work.case.rows // work.sizes.their_rows
    policy = _policy(work)
    no_token = policy.get_base_model().config.vocab_size
    args = GRPOConfig(
        **_arguments(work, work.sizes.their_rows),
        num_generations=settings.group,
        steps_per_generation=accumulated,
        max_completion_length=work.sizes.response,
        beta=settings.kl,
        epsilon=settings.clip,
        loss_type="grpo",
        generation_kwargs={"eos_token_id": no_token},
        pad_to_multiple_of=None,
        shuffle_dataset=False,
    )

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [share_of_even_tokens(tokens) for tokens in completion_ids]

    columns = {"prompt": [str(number) for number in range(len(work.prompts))]}
    trainer: Any = GrpoOnTokens(model=policy, args=args, reward_funcs=reward, **_data(work, columns))
    trainer.prompts, trainer.eos_token_ids = work.prompts, [no_token]
    return _ready(trainer)


MAKERS: Mapping[str, Callable[[Work], Ready]] = {"sft": _sft, "reward": _reward, "dpo": _dpo, "grpo": _grpo}


def _failures(work: Work) -> list[tuple[list[int], list[list[int]]]]:
    """Return prompts with their responses in the order in which our trainer reads them."""
    count, each = len(work.prompts), work.case.batch_size // work.case.failures
    lengths = [work.sizes.prompt + work.case.responses * work.sizes.response] * count
    batches = training_batches([each] * count, lengths, work.case.batch_size, 1, work.experiment.seed)
    return [(work.prompts[number], work.responses[number]) for batch in batches for number in batch]


def _policy(work: Work) -> Any:
    return adapted(work.experiment.train, work.folder / SFT)


def _data(work: Work, columns: dict[str, Any]) -> dict[str, Any]:
    tokenizer = load_tokenizer(work.experiment.train)
    return {"train_dataset": Dataset.from_dict(columns), "processing_class": tokenizer}


def _arguments(work: Work, at_once: int) -> dict[str, Any]:
    """Return the settings of our trainer, but TRL's micro-batches, and nothing saved or computed twice."""
    settings = trainer_settings(Stage(work.case.stage, work.experiment, {}), work.settings)
    return settings | {
        "output_dir": str(work.folder / "trl"),
        "per_device_train_batch_size": at_once,
        "gradient_accumulation_steps": work.case.batch_size // at_once,
        "gradient_checkpointing": False,
        "save_strategy": "no",
    }


def _ready(trainer: Any) -> Ready:
    # TRL trains adapters of 4-bit models in bf16; here both sides train them in fp32.
    keep_trainables_in_fp32(trainer.model)

    def take(laps: Laps) -> list[float]:
        trainer.add_callback(StepLaps(laps))
        if sampled := isinstance(trainer, GRPOTrainer):
            trainer._generate_single_turn = laps.timed("sampling", trainer._generate_single_turn)
        trainer.train()
        return [] if sampled else [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return Ready(trainer.model.get_base_model(), take)
