"""Trains on groups in packed rows by transformers' trainer: imitation, the reward model and DPO.

Batches, collation, losses and measurements all work on groups. transformers' trainer supplies the loop, the optimiser
and its schedule, clipping, logging and checkpoints.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import TrainingArguments

from .base import save_memory
from .shared_prompt.agreement import choose_attention
from .shared_prompt.packed import Group, Groups, Packed, micro_batches, pack
from .shared_prompt.reading import hidden_states, plain_states, response_readings, trunk_of
from .stage import Stage
from .trainer import ParallelTrainer, trainer_settings


class Objective(ABC):
    """What a stage computes from the hidden states of groups."""

    quick = True
    """True if a CPU may read short rows by quick attention."""

    def values(self, model: Any, hidden_BLH: Tensor, packed: Packed) -> Tensor:
        """Return what the loss depends on, for each token, (N,), or response, (R,); by default log-probabilities."""
        return response_readings(model, hidden_BLH, packed).log_probs_N

    @abstractmethod
    def loss(self, values: Tensor, packed: Packed, groups: Sequence[Group], batch: Sequence[Group]) -> Tensor:
        """Return the share of a micro-batch, `groups`, in the loss of its batch."""


class GroupReader(NamedTuple):
    """Reads groups as the trainer of a model does, and computes the values of its stage."""

    model: Any
    objective: Objective
    packs: bool = True
    """False for TRL, which reads each response in a row of its own."""

    def rows(self, group: Group) -> list[Group]:
        """Return the rows of a group."""
        return [group] if self.packs else group.alone

    def hidden(self, packed: Packed) -> Tensor:
        """Return the last hidden states of rows, (B, L, H)."""
        return (hidden_states if self.packs else plain_states)(trunk_of(self.model), packed)

    def read(self, packed: Packed) -> Tensor:
        """Return the values of rows."""
        return self.objective.values(self.model, self.hidden(packed), packed)

    @torch.no_grad()
    def measured(self, groups: Sequence[Group]) -> list[Tensor]:
        """Return the values of each group, on the CPU; rows are read one by one, so that padding has no effect."""
        self.model.eval()
        return [
            torch.cat([self.read(pack([row]).to(self.model.device)).cpu() for row in self.rows(group)])
            for group in groups
        ]


class GroupTrainer(ParallelTrainer):
    """Trains on packed rows."""

    def __init__(self, stage: Stage, model: Any, groups: Groups, objective: Objective) -> None:
        self._groups, self._most_tokens = groups, stage.experiment.train.micro_batch_tokens
        self.reader = GroupReader(model, objective)
        self._batches = batches_of(stage, groups)
        checkpointing = stage.experiment.train.gradient_checkpointing
        save_memory(model.get_base_model(), model, gradient_checkpointing=checkpointing)
        super().__init__(
            model=model,
            args=TrainingArguments(**trainer_settings(stage, stage.steps.learning_rate)),
            train_dataset=[{"batch": number} for number in range(len(self._batches))],
        )

    def train(self, **options: Any) -> Any:
        """Train as the trainer does, after a check that the model reads groups as it reads separate rows."""
        if self._batches:
            self.model.train()
            groups = [self._groups[number] for number in self._batches[0]]
            objective = self.reader.objective
            values = partial(objective.values, self.model)
            choose_attention(trunk_of(self.model), values, groups, quick=objective.quick)
        return super().train(**options)

    def losses(self, batch: int) -> Iterator[Callable[[], Tensor]]:
        """Yield a function for each micro-batch of a batch, which computes its share in the loss of the batch."""
        groups = [self._groups[number] for number in self._batches[batch]]
        for part in micro_batches(groups, self._most_tokens):
            yield partial(self._loss, part, groups)

    def _loss(self, groups: Sequence[Group], batch: Sequence[Group]) -> Tensor:
        packed = pack(groups).to(self.args.device)
        return self.reader.objective.loss(self.reader.read(packed), packed, groups, batch)


def make_trainer(stage: Stage, model: Any, groups: Groups, objective: Objective) -> Any:
    """Return the trainer that `train.trainer` names, with a `reader`."""
    if stage.experiment.train.trainer == "packed":
        return GroupTrainer(stage, model, groups, objective)
    from .trl_trainers import trainer_on_groups  # Its import takes seconds.

    trainer = trainer_on_groups(stage, model, groups, batches_of(stage, groups))
    trainer.reader = GroupReader(model, objective, packs=False)
    return trainer


def batches_of(stage: Stage, groups: Groups) -> list[list[int]]:
    """Return the numbers of the groups of each batch, all epochs in one list."""
    experiment, epochs = stage.experiment, stage.steps.epochs
    batch_size = experiment.train.batch(stage.name)
    assert batch_size is not None, "make_stage completes the settings"
    # All pairs on a failure are one sample of the reward model, since they share their responses (InstructGPT, 3.4).
    sizes = groups.shares if stage.name == "reward" else groups.sizes
    return training_batches(sizes, groups.lengths, batch_size, epochs, experiment.seed)


def training_batches(
    sizes: Sequence[float], lengths: Sequence[int], batch_size: int, epochs: int, seed: int
) -> list[list[int]]:
    """Return the numbers of the groups of each batch, all epochs in one list.

    Groups stay whole, so a batch has about `batch_size` samples. Every epoch is shuffled. Then each stretch of about
    eight batches is sorted by length, so that the groups of a batch have similar lengths and little padding, and the
    batches of the stretch are shuffled. The result depends on the arguments only, so a resumed run continues with the
    batches that the killed run would have seen. `sizes` are samples of each group, `lengths` tokens.
    """
    generator = random.Random(f"order of training {seed}")
    stream = [index for _ in range(epochs) for index in generator.sample(range(len(sizes)), len(sizes))]
    batches: list[list[int]] = []
    for stretch in _cut(stream, sizes, 8 * batch_size):
        by_length = sorted(stretch, key=lengths.__getitem__)
        of_stretch = list(_cut(by_length, sizes, batch_size))
        generator.shuffle(of_stretch)
        batches += of_stretch
    return batches


def _cut(numbers: Sequence[int], sizes: Sequence[float], size: int) -> Iterator[list[int]]:
    """Cut `numbers` into parts whose total size is as close to `size` as possible."""
    part: list[int] = []
    held = 0.0
    for number in numbers:
        if part and held + sizes[number] - size > size - held:
            yield part
            part, held = [], 0.0
        part.append(number)
        held += sizes[number]
    if part:
        yield part
