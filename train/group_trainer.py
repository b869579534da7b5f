"""Trains on groups by transformers' trainer: imitation, the reward model and DPO.

TRL's trainers are not used: batches, collation, losses and measurements all work on groups. transformers' trainer
supplies the loop, the optimiser and its schedule, clipping, logging and checkpoints.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import TrainingArguments

from retroformer.experiment.sections.steps import Groupwise

from . import processes
from .base import save_memory, trainable
from .integrity.finite import require_finite_gradients
from .shared_prompt.agreement import settle_attention
from .shared_prompt.batches import micro_batches, training_batches
from .shared_prompt.group import Group, Groups
from .shared_prompt.packed import Packed, pack
from .shared_prompt.reading import hidden_states, predicting, token_readings
from .stage import Stage
from .trainer import ParallelTrainer, trainer_settings


class Objective(Protocol):
    """What a stage computes from the hidden states of groups."""

    def values(self, model: Any, hidden_BLH: Tensor, packed: Packed) -> Tensor:
        """Return what the loss depends on: a value for each token, (N,), or for each response, (R,)."""
        ...

    def loss(self, values: Tensor, packed: Packed, groups: Sequence[Group], batch: Sequence[Group]) -> Tensor:
        """Return the share of a micro-batch, `groups`, in the loss of its batch."""
        ...


class GroupTrainer(ParallelTrainer):
    """Takes one optimiser step for each batch of groups.

    With `quick`, short rows are read by quick attention.
    """

    def __init__(
        self,
        stage: Stage,
        optimizer: Groupwise,
        model: Any,
        groups: Groups,
        objective: Objective,
        *,
        quick: bool = True,
    ) -> None:
        self._groups, self._objective, self._most_tokens = groups, objective, optimizer.micro_batch_tokens
        self._quick = quick
        self._batches = training_batches(
            groups.sizes, groups.lengths, optimizer.batch_size, optimizer.epochs, stage.experiment.seed
        )
        checkpointing = stage.experiment.train.gradient_checkpointing
        save_memory(model.get_base_model(), model, gradient_checkpointing=checkpointing)
        super().__init__(
            model=model,
            args=TrainingArguments(**trainer_settings(stage, optimizer), remove_unused_columns=False),
            train_dataset=[{"batch": number} for number in range(len(self._batches))],
        )

    def train(self, **options: Any) -> Any:
        """Train as the trainer does, after a check that the model reads groups as it reads separate rows."""
        if self._batches:
            self.model.train()
            groups = [self._groups[number] for number in self._batches[0]]
            settle_attention(trunk_of(self.model), self._values, groups, quick=self._quick)
        return super().train(**options)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Compute the loss and the gradients of a batch, micro-batch by micro-batch."""
        model.train()
        batch = [self._groups[number] for number in self._batches[int(inputs["batch"])]]
        loss = torch.zeros((), device=self.args.device)
        for index, groups in enumerate(micro_batches(batch, self._most_tokens)):
            if processes.is_mine(index):
                processes.seed_item(self.args.seed, self.state.global_step, index)
                packed = pack(groups).to(self.args.device)
                part = self._objective.loss(self.read(packed), packed, groups, batch)
                part.backward()  # type: ignore[no-untyped-call]
                loss += part.detach()
        processes.sum_gradients(trainable(model))
        require_finite_gradients(model.named_parameters(), f"in step {self.state.global_step + 1}")
        return loss

    def read(self, packed: Packed) -> Tensor:
        """Return the values of packed groups."""
        return self._values(hidden_states(trunk_of(self.model), packed), packed)

    @torch.no_grad()
    def measured(self, groups: Sequence[Group]) -> list[Tensor]:
        """Return the values of each group, on the CPU; groups are read one by one, so that padding has no effect."""
        self.model.eval()
        return [self.read(pack([group]).to(self.args.device)).cpu() for group in groups]

    def _values(self, hidden_BLH: Tensor, packed: Packed) -> Tensor:
        return self._objective.values(self.model, hidden_BLH, packed)


def trunk_of(model: Any) -> Any:
    """Return the layers of an adapted model, without its head."""
    return model.get_base_model().base_model


def log_probs(model: Any, hidden_BLH: Tensor, packed: Packed) -> Tensor:
    """Return the log-probabilities of the tokens of all responses, (N,)."""
    head = model.get_base_model().get_output_embeddings()
    return token_readings(predicting(hidden_BLH, packed), packed, head).log_probs_N
