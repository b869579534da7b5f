"""Direct preference optimisation: trains the policy on preference pairs, without a reward model.

DPO: Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward Model (2023).

Reads preference pairs and the SFT adapter, which is both the policy's start and the reference; writes a LoRA adapter to
runs/NAME/dpo. The held-out tasks are those of the reward model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retroformer.method.records import PreferencePair
from retroformer.models.loading import load_adapter

from . import processes
from .adapter import Adapter
from .base import keep_trainables_in_fp32, load_base, load_tokenizer, switch_dropout_off, switched_to
from .group_trainer import GroupReader, Objective, make_trainer
from .losses import BETA, implicit_rewards, preference_loss
from .pair_split import in_pairs, split_pairs, weights_of_pairs
from .shared_prompt.packed import Group, Groups, Packed, pack
from .stage import Meter, Stage, publish
from .trainer import run_trainer

POLICY, REFERENCE = "default", "ref"
"""Names of the adapters; peft saves `default` into the given folder itself, others into subfolders."""


class DirectPreference(Objective):
    """The loss of DPO (eq. 7) over the pairs of a batch.

    `references` has the log-probabilities of the responses of each group under the SFT policy, by the group's number.
    """

    # The policy is compared with readings of the reference that are made before training.
    quick = False

    def __init__(self, pair_weight: str) -> None:
        self._pair_weight = pair_weight
        self.references: Sequence[Tensor] = ()

    def loss(self, values: Tensor, packed: Packed, groups: Sequence[Group], batch: Sequence[Group]) -> Tensor:
        """Return the share of `groups` in the loss of their batch."""
        reference_R = torch.cat([self.references[group.number] for group in groups]).to(values.device)
        rewards_R = implicit_rewards(packed.sums(values), reference_R, BETA)
        losses_P = preference_loss(*in_pairs(rewards_R, groups))
        return (losses_P * weights_of_pairs(groups, batch, self._pair_weight).to(losses_P)).sum()


def train_by_dpo(stage: Stage, pairs: Sequence[PreferencePair], adapters: Mapping[str, Adapter]) -> None:
    """Train the adapter `start` on the pairs of most tasks, measure on those of the held-out tasks, and publish."""
    meter, seed = Meter(), stage.experiment.seed
    split = split_pairs(stage, load_tokenizer(stage.experiment.train), pairs, adapters)
    trainer = dpo_trainer(stage, adapters["start"].folder, split.train)
    progress = run_trainer(trainer, stage)
    measured = measure(trainer.reader, split.measured(seed), "train")
    measured |= measure(trainer.reader, split.held_out, "held_out")
    cost = meter.read(stage.steps.epochs * split.tokens, progress["resumed_from_step"])
    metrics = split.counts | measured | progress | cost
    publish(stage, lambda folder: trainer.model.save_pretrained(folder, selected_adapters=[POLICY]), metrics)


def dpo_trainer(stage: Stage, sft: Path, groups: Groups) -> Any:
    """Return the trainer of the adapter in `sft`, which is also the reference, on `groups`."""
    model = policy_and_reference(load_base(stage.experiment.train), sft, stage)
    objective = DirectPreference(stage.experiment.train.pair_weight)
    trainer = make_trainer(stage, model, groups, objective)
    if trainer.reader.packs:
        # Read once, as the reference does not change: each group alone, so that a resumed run reads the same numbers.
        with switched_to(model, REFERENCE):
            objective.references = processes.each(groups, lambda group: response_sums(trainer.reader, group))
    return trainer


def policy_and_reference(base: Any, sft: Path, stage: Stage) -> Any:
    """Put the SFT adapter on `base` twice: as the policy, which is trained, and as the reference, which is not.

    TRL makes the reference itself.
    """
    model = load_adapter(base, sft)
    if stage.experiment.train.trainer == "packed":
        model.load_adapter(str(sft), REFERENCE)
    switch_dropout_off(model)
    keep_trainables_in_fp32(model)
    return model


def response_sums(reader: GroupReader, group: Group) -> Tensor:
    """Return the log-probability of each response under the model's active adapter, on the CPU, (R,)."""
    return pack([group]).sums(*reader.measured([group]))


def measure(reader: GroupReader, groups: Sequence[Group], name: str) -> dict[str, float]:
    """Return accuracy, loss, margin and means of the implicit rewards; {} without pairs."""
    if not groups:
        return {}

    def sums(adapter: str) -> Tensor:
        with switched_to(reader.model, adapter):
            return torch.cat([response_sums(reader, group) for group in groups])

    chosen_P, rejected_P = in_pairs(implicit_rewards(sums(POLICY), sums(REFERENCE), BETA), groups)
    return {
        f"{name}_accuracy": (chosen_P > rejected_P).float().mean().item(),
        f"{name}_loss": preference_loss(chosen_P, rejected_P).mean().item(),
        f"{name}_margin": (chosen_P - rejected_P).mean().item(),
        f"{name}_chosen_reward": chosen_P.mean().item(),
        f"{name}_rejected_reward": rejected_P.mean().item(),
    }
