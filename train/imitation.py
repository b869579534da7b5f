"""Supervised fine-tuning on advice written by rule (`warm`) or on positively rated advice (`sft`; Retroformer, appendix
C).

Reads prompts and responses; writes a LoRA adapter to runs/NAME/STAGE. Only tokens of responses contribute to the loss.
Packed rows hold all responses to one prompt.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retroformer.config.sections.train import Train
from retroformer.models.loading import load_adapter

from .adapter import Adapter
from .base import add_fresh_adapter, keep_trainables_in_fp32, load_base, load_tokenizer
from .data.rows import write_rows
from .data.samples import AdviceText, Sample, samples
from .group_trainer import Objective, make_trainer
from .preflight import preflight
from .shared_prompt.packed import Group, Groups, Packed
from .stage import Meter, Stage, publish
from .trainer import run_trainer


class Imitation(Objective):
    """The mean cross-entropy over the response tokens of a batch."""

    def loss(self, values: Tensor, packed: Packed, groups: Sequence[Group], batch: Sequence[Group]) -> Tensor:
        """Return the share of `groups` in the loss of their batch."""
        return -values.sum() / sum(len(response) for group in batch for response in group.responses)


def imitate(stage: Stage, texts: Sequence[AdviceText], adapters: Mapping[str, Adapter]) -> None:
    """Train an adapter on the texts, starting from the adapter `start` or a fresh one, and publish it."""
    meter, train = Meter(), stage.experiment.train
    rows = write_rows(samples(load_tokenizer(train), texts), Sample, stage.experiment.folder)
    lengths = [len(sample.ids) for sample in rows]
    groups = Groups(rows, train.micro_batch_tokens)
    preflight(stage, "samples", lengths, max(groups.lengths, default=0), adapters)
    start = adapters["start"].folder if "start" in adapters else None
    torch.manual_seed(stage.experiment.seed)  # A fresh adapter is initialised at random.
    trainer = make_trainer(stage, adapted(train, start), groups, Imitation())
    progress = run_trainer(trainer, stage)
    tokens = sum(groups.lengths) * stage.steps.epochs
    counts = {"samples": len(rows), "samples_with_duplicates": len(texts)}
    cost = meter.read(tokens, progress["resumed_from_step"])
    publish(stage, trainer.model.save_pretrained, counts | progress | cost)


def adapted(train: Train, start: Path | None) -> Any:
    """Return the base with the adapter in `start`, or with a fresh one."""
    base = load_base(train)
    model = load_adapter(base, start) if start else add_fresh_adapter(base, train.lora)
    keep_trainables_in_fp32(model)
    return model
