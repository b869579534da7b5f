"""Direct preference optimisation: trains the policy on preference pairs, without a reward model.

DPO: Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward Model (2023).

Reads preference pairs and the SFT adapter, which is both the policy's start and the reference; writes a LoRA adapter to
runs/NAME/dpo. The held-out tasks are those of the reward model.

The trainer is transformers' own, with the loss of train/losses.py. trl's DPO trainer (1.16) is not used because

1. it takes only text, and tokenises prompt and response itself: not always into the tokens that are served;
2. with a 4-bit base it rounds the policy to bf16 but not the reference, so they differ before the first step;
3. on a CPU it runs the language head on every position, including prompts.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import TrainingArguments
from trl.trainer.dpo_trainer import DataCollatorForPreference

from retroformer.experiment.sections.train import Dpo
from retroformer.records import PreferencePair

from .base import CPU, device, load_adapter, load_base, load_tokenizer, switched_to
from .data.rows import as_row
from .data.samples import SamplePair
from .losses import divergence, implicit_rewards, preference_loss
from .pair_split import split_pairs
from .stage import Meter, Stage, publish
from .trainer import ParallelTrainer, ordered_rows, run_trainer, trainer_settings

POLICY, REFERENCE = "default", "ref"
"""Names of the adapters; peft saves `default` into the given folder itself, others into subfolders."""


class PairTrainer(ParallelTrainer):
    """Trains the policy on pairs; the reference stays the SFT policy."""

    def __init__(self, beta: float, **settings: Any) -> None:
        super().__init__(**settings)
        self._beta = beta

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the mean loss of the pairs in a micro-batch (DPO eq. 7)."""
        # The reference reads the same rows in the same shape, since rounding in bf16 kernels depends on the shape.
        with torch.no_grad(), switched_to(model, REFERENCE):
            reference_R = response_sums(token_log_probs(model, inputs), inputs)
        log_probs_R = response_sums(token_log_probs(model, inputs), inputs)
        chosen_B, rejected_B = implicit_rewards(log_probs_R, reference_R, self._beta).chunk(2)
        return preference_loss(chosen_B, rejected_B).mean()


def train_by_dpo(stage: Stage, optimizer: Dpo, pairs: Sequence[PreferencePair], sft: Path) -> None:
    """Train the adapter in `sft` on the pairs of most tasks, measure on those of the held-out tasks, and publish.

    Raises:
        ConfigError: a sample is longer than train.max_length, or the shape of the adapter is not that of train.lora.
    """
    meter, seed, beta = Meter(), stage.experiment.seed, optimizer.beta
    tokenizer = load_tokenizer(stage.experiment.train)
    split = split_pairs(stage, tokenizer, pairs)
    rows = ordered_rows(split.train, split.lengths, optimizer, seed)
    trainer = pair_trainer(stage, optimizer, trainer_settings(stage, optimizer), sft, tokenizer.pad_token_id, rows)
    progress = run_trainer(trainer, stage, len(split.train) * optimizer.epochs)
    measured = measure(trainer, split.measured(seed), beta, "train")
    measured |= measure(trainer, split.held_out, beta, "held_out")
    metrics = split.counts | measured | progress | meter.read(optimizer.epochs * split.tokens)
    publish(stage, lambda folder: trainer.model.save_pretrained(folder, selected_adapters=[POLICY]), metrics)


def pair_trainer(stage: Stage, optimizer: Dpo, settings: dict[str, Any], sft: Path, pad_id: int, rows: Any) -> Any:
    """Return the trainer of the adapter in `sft`, on `rows` as `as_row` makes them."""
    del settings["max_length"]  # An argument of trl's trainers only; this trainer never cuts.
    return PairTrainer(
        optimizer.beta,
        model=policy_and_reference(load_base(stage.experiment.train), sft, stage),
        args=TrainingArguments(**settings, remove_unused_columns=False),
        data_collator=DataCollatorForPreference(pad_token_id=pad_id),
        train_dataset=rows,
    )


def policy_and_reference(base: Any, sft: Path, stage: Stage) -> Any:
    """Put the SFT adapter on `base` twice: as the policy, which is trained, and as the reference, which is not.

    Dropout is off, as in PPO: differences between policy and reference must not be noise.
    """
    model = load_adapter(base, sft, stage.experiment.train.lora)
    model.load_adapter(str(sft), REFERENCE)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if device() != CPU:
        model.enable_input_require_grads()
    return model


def token_log_probs(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the log-probabilities of the whole vocabulary at the N response tokens of a batch, (N, V)."""
    language_model = model.get_base_model()
    read = language_model.base_model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
    )
    is_response_RL = batch["completion_mask"][:, 1:].bool()
    hidden_NH = read.last_hidden_state[:, :-1][is_response_RL].float()
    # In fp32, since bf16 logits are off by a tenth; and only at response tokens, since prompts are long.
    with torch.autocast(hidden_NH.device.type, enabled=False):
        return linear(hidden_NH, language_model.get_output_embeddings().weight.float()).log_softmax(dim=-1)


def response_sums(log_probs_NV: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return the log-probability of each of the R responses of a batch, summed over its tokens, (R,)."""
    is_response_RL = batch["completion_mask"][:, 1:].bool()
    chosen_N = log_probs_NV.gather(1, batch["input_ids"][:, 1:][is_response_RL][:, None])[:, 0]
    return torch.zeros_like(is_response_RL, dtype=chosen_N.dtype).masked_scatter(is_response_RL, chosen_N).sum(dim=1)


@torch.no_grad()
def measure(trainer: Any, pairs: Sequence[SamplePair], beta: float, name: str) -> dict[str, float]:
    """Return accuracy, loss and margin of the implicit rewards, and the KL from the SFT policy; {} without pairs.

    The KL is exact at each token, but measured along the recorded responses, not along samples of the policy.
    """
    if not pairs:
        return {}
    model = trainer.model.eval()
    rewards, divergences = [], []
    for pair in pairs:
        batch = {key: value.to(trainer.args.device) for key, value in trainer.data_collator([as_row(pair)]).items()}
        with trainer.accelerator.autocast():
            log_probs_NV = token_log_probs(model, batch)
            with switched_to(model, REFERENCE):
                reference_NV = token_log_probs(model, batch)
        sums_R, reference_R = response_sums(log_probs_NV, batch), response_sums(reference_NV, batch)
        rewards.append(implicit_rewards(sums_R, reference_R, beta).cpu())
        divergences.append(divergence(log_probs_NV, reference_NV).mean().item())
    chosen_B, rejected_B = torch.stack(rewards).unbind(dim=1)
    return {
        f"{name}_accuracy": (chosen_B > rejected_B).float().mean().item(),
        f"{name}_loss": preference_loss(chosen_B, rejected_B).mean().item(),
        f"{name}_margin": (chosen_B - rejected_B).mean().item(),
        f"{name}_chosen_reward": chosen_B.mean().item(),
        f"{name}_rejected_reward": rejected_B.mean().item(),
        f"{name}_kl_per_token": fmean(divergences),
    }
