"""TRL's side of `benchmarks/training.py`, with lean settings: `train.trainer=trl`, and its trainer of GRPO.

`differences` compares a batch on both sides; `benchmarks/agreement.py` prints it.
"""

from typing import Any, NamedTuple

import torch
from datasets import Dataset
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from benchmarks.training_cases import SFT, StageWork
from benchmarks.training_laps import Laps, Ready, StepLaps
from benchmarks.training_retroformer import groups_of, share_of_even_tokens, supervised, trainer_of
from train.base import keep_trainables_in_fp32, load_tokenizer
from train.imitation import adapted
from train.rl.grpo import CLIP
from train.shared_prompt.packed import Groups
from train.stage import Stage
from train.trainer import trainer_settings


def load_trl(work: StageWork) -> Ready:
    torch.manual_seed(work.experiment.seed)
    return _grpo(work) if work.case.stage == "grpo" else supervised(on_trl(work))


def on_trl(work: StageWork) -> StageWork:
    """Return the work with TRL's trainer, micro-batches of `trl_rows`, and nothing computed twice."""
    train, rows = work.experiment.train, work.sizes.trl_rows
    tokens = rows * (work.sizes.prompt + work.sizes.response)
    changes = {"trainer": "trl", "gradient_checkpointing": False, "micro_batch_tokens": tokens}
    return work._replace(experiment=work.experiment.model_copy(update={"train": train.model_copy(update=changes)}))


class Difference(NamedTuple):
    """Differences between packed rows and TRL in a batch, relative to TRL's values."""

    loss: float
    gradient: float
    """Norm of the difference of the whole gradient."""
    largest: float
    """The largest of those of single parameters: LoRA's matrices, and a score head."""


def differences(work: StageWork, groups: Groups | None = None) -> Difference:
    """Return how far loss and gradient of the first batch of `groups`, or of the case, differ from TRL's."""
    groups = groups_of(work) if groups is None else groups
    (loss, gradient), (trl_loss, expected) = (_first_batch(side, groups) for side in (work, on_trl(work)))
    if gradient.keys() != expected.keys():
        raise AssertionError(f"Only one side trains {gradient.keys() ^ expected.keys()}.")
    of_parameters = [float((gradient[name] - value).norm() / value.norm()) for name, value in expected.items()]
    ours, theirs = (torch.cat([side[name].flatten() for name in expected]) for side in (gradient, expected))
    return Difference(abs(loss / trl_loss - 1), float((ours - theirs).norm() / theirs.norm()), max(of_parameters))


def _first_batch(work: StageWork, groups: Groups) -> tuple[float, dict[str, Tensor]]:
    """Return loss and gradient of the first batch, at weights where no part of the gradient is zero."""
    trainer = trainer_of(work, groups)
    learnt = {name: parameter for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    torch.manual_seed(0)
    for name in sorted(learnt):
        learnt[name].data += 0.02 * torch.randn(learnt[name].shape).to(learnt[name])
    loss = float(trainer.training_step(trainer.model, {"batch": 0}))
    return loss, {name: parameter.grad.float() for name, parameter in learnt.items() if parameter.grad is not None}


class GrpoOnTokens(GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer on prompts that are numbers of token lists."""

    prompts: list[list[int]]

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [self.prompts[int(number)] for number in prompts], None, {}


def _grpo(work: StageWork) -> Ready:
    settings, at_once = work.settings, work.sizes.trl_rows
    policy = adapted(work.experiment.train, work.folder / SFT)
    no_token = policy.get_base_model().config.vocab_size
    args = GRPOConfig(
        **trainer_settings(Stage(work.case.stage, work.experiment, {}), settings.learning_rate)
        | {
            "output_dir": str(work.folder / "trl"),
            "per_device_train_batch_size": at_once,
            "gradient_accumulation_steps": work.case.batch_size // at_once,
            "save_strategy": "no",
        },
        num_generations=settings.group,
        steps_per_generation=work.case.rows // at_once,
        max_completion_length=work.sizes.response,
        beta=settings.kl,
        epsilon=CLIP,
        loss_type="grpo",
        generation_kwargs={"eos_token_id": no_token},
        pad_to_multiple_of=None,
        shuffle_dataset=False,
    )

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [share_of_even_tokens(tokens) for tokens in completion_ids]

    trainer: Any = GrpoOnTokens(
        model=policy,
        args=args,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(len(work.prompts))]}),
        processing_class=load_tokenizer(work.experiment.train),
    )
    trainer.prompts, trainer.eos_token_ids = work.prompts, [no_token]
    # TRL trains adapters of 4-bit models in bf16; here both sides train them in fp32.
    keep_trainables_in_fp32(policy)

    def take(laps: Laps) -> list[float]:
        trainer.add_callback(StepLaps(laps))
        trainer._generate_single_turn = laps.timed("sampling", trainer._generate_single_turn)
        trainer.train()
        return []

    return Ready(trainer.model.get_base_model(), take)
