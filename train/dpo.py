"""Direct preference optimisation: the policy learns from the reward model's pairs, without a reward model.

DPO: Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward Model (2023).

Reads preference pairs and the SFT adapter, which is where the policy starts and what it is held to; writes a LoRA
adapter to runs/NAME/dpo. The tasks that the reward model holds out are held out here as well.

The trainer is transformers' own, with the loss of train/losses.py. trl's (1.16) would not be true to the method here:

1. It takes text alone, and finds tokens of its own for prompt and response: not always those that are served.
2. With a 4-bit base it rounds the policy to bf16, but not the reference: they differ before the first step.
3. On a CPU it runs the language head on every position, prompts included.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import TrainingArguments
from trl.trainer.dpo_trainer import DataCollatorForPreference

from retroformer.records import PreferencePair
from retroformer.train_sections import Dpo
from train.base import CPU, device, load_adapter, load_base, load_tokenizer
from train.dataset import SamplePair, each_pair, require_length
from train.losses import divergence, implicit_rewards, preference_loss
from train.reward import MEASURED_PAIRS, held_out_tasks
from train.rows import as_row, write_pairs
from train.stage import Meter, Stage, publish
from train.supervised import DealingTrainer, ordered_rows, run_trainer, trainer_settings

POLICY, REFERENCE = "default", "ref"
"""Adapters on one base; peft writes `default` into a folder itself, others into folders below it."""


class PairTrainer(DealingTrainer):
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
        """The mean loss of the pairs in a micro-batch (DPO eq. 7)."""
        # The reference reads the same rows in the same shape: bf16 kernels depend on it.
        with torch.no_grad(), speaking_as_reference(model):
            reference_R = response_sums(token_log_probs(model, inputs), inputs)
        log_probs_R = response_sums(token_log_probs(model, inputs), inputs)
        chosen_B, rejected_B = implicit_rewards(log_probs_R, reference_R, self._beta).chunk(2)
        return preference_loss(chosen_B, rejected_B).mean()


def prefer(stage: Stage, optimizer: Dpo, pairs: Sequence[PreferencePair], sft: Path) -> None:
    """Train the adapter in `sft` on the pairs of most tasks, measure it on the pairs of the others, publish it.

    Raises:
        ConfigError: a sample is longer than train.max_length, or `sft` has another shape than the page asks for.
    """
    meter, page, seed = Meter(), stage.experiment.train, stage.experiment.seed
    tokenizer = load_tokenizer(page)
    apart = held_out_tasks([pair.task_id for pair in pairs], seed)
    folder = stage.experiment.folder
    known = write_pairs(each_pair(tokenizer, (pair for pair in pairs if pair.task_id not in apart)), folder)
    unknown = write_pairs(each_pair(tokenizer, (pair for pair in pairs if pair.task_id in apart)), folder)
    texts = [len(sample.ids) for pair in (*known, *unknown) for sample in pair]
    require_length(texts, page.max_length, "samples of pairs")
    lengths = [max(len(pair.chosen.ids), len(pair.rejected.ids)) for pair in known]
    rows = ordered_rows(known.rows, lengths, optimizer, seed)
    trainer = pair_trainer(stage, optimizer, trainer_settings(stage, optimizer), sft, tokenizer.pad_token_id, rows)
    told = run_trainer(trainer, stage, len(known) * optimizer.epochs)
    some = random.Random(seed).sample(known, min(MEASURED_PAIRS, len(known)))
    measured = measure(trainer, some, optimizer.beta, "train") | measure(trainer, unknown, optimizer.beta, "held_out")
    counts = {"pairs": len(known), "held_out_pairs": len(unknown), "held_out_tasks": sorted(apart)}
    tokens = optimizer.epochs * sum(len(sample.ids) for pair in known for sample in pair)
    publish(
        stage,
        lambda folder: trainer.model.save_pretrained(folder, selected_adapters=[POLICY]),
        counts | measured | told | meter.read(tokens),
    )


def pair_trainer(stage: Stage, optimizer: Dpo, settings: dict[str, Any], sft: Path, pad_id: int, rows: Any) -> Any:
    """The trainer of the adapter in `sft` on rows as `as_row` makes them."""
    del settings["max_length"]  # An argument of trl's; this trainer cuts nothing.
    return PairTrainer(
        optimizer.beta,
        model=policy_and_reference(load_base(stage.experiment.train), sft, stage),
        args=TrainingArguments(**settings, remove_unused_columns=False),
        data_collator=DataCollatorForPreference(pad_token_id=pad_id),
        train_dataset=rows,
    )


def policy_and_reference(base: Any, sft: Path, stage: Stage) -> Any:
    """`base` with the SFT adapter twice: as the policy, to be trained, and as the reference, which is not.

    Without dropout, as in PPO: what the policy gains over the reference must not be noise.
    """
    model = load_adapter(base, sft, stage.experiment.train.lora)
    model.load_adapter(str(sft), REFERENCE)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if device() != CPU:
        model.enable_input_require_grads()
    return model


@contextmanager
def speaking_as_reference(model: Any) -> Iterator[None]:
    """Within this, the model is the SFT policy."""
    model.set_adapter(REFERENCE)
    try:
        yield
    finally:
        model.set_adapter(POLICY)


def token_log_probs(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """Log-probabilities of the whole vocabulary at the N tokens of all responses of a batch, (N, V)."""
    language_model = model.get_base_model()
    read = language_model.base_model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
    )
    is_response_RL = batch["completion_mask"][:, 1:].bool()
    hidden_NH = read.last_hidden_state[:, :-1][is_response_RL].float()
    # In fp32, and only for the tokens of responses: bf16 logits are off by a tenth, and prompts are long.
    with torch.autocast(hidden_NH.device.type, enabled=False):
        return linear(hidden_NH, language_model.get_output_embeddings().weight.float()).log_softmax(dim=-1)


def response_sums(log_probs_NV: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Log-probabilities of the R responses of a batch, each the sum over its tokens, (R,)."""
    is_response_RL = batch["completion_mask"][:, 1:].bool()
    said_N = log_probs_NV.gather(1, batch["input_ids"][:, 1:][is_response_RL][:, None])[:, 0]
    return torch.zeros_like(is_response_RL, dtype=said_N.dtype).masked_scatter(is_response_RL, said_N).sum(dim=1)


@torch.no_grad()
def measure(trainer: Any, pairs: Sequence[SamplePair], beta: float, name: str) -> dict[str, float]:
    """How many pairs the implicit rewards put in order, by how much, and how far the policy has gone from SFT.

    The divergence is exact, a token, but along the recorded responses: not along what the policy itself would say.
    Nothing where there are no pairs.
    """
    if not pairs:
        return {}
    model = trainer.model.eval()
    rewards, divergences = [], []
    for pair in pairs:
        batch = {key: value.to(trainer.args.device) for key, value in trainer.data_collator([as_row(pair)]).items()}
        with trainer.accelerator.autocast():
            log_probs_NV = token_log_probs(model, batch)
            with speaking_as_reference(model):
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
