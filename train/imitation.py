"""Supervised fine-tuning on advice written by rule (`warm`), on positively rated advice (`sft`; Retroformer, appendix
C), or on scripted play (`actor`).

Reads tokens with labels; writes a LoRA adapter to runs/NAME/STAGE. Only labelled tokens contribute to the loss.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from retroformer.experiment.sections.train import Optimizer, Train

from .base import CPU, device, load_adapter, load_base, load_tokenizer, lora_config, reload_weights, trainable
from .data.rows import write_rows
from .data.samples import IGNORED, require_length
from .room import require_room
from .stage import Meter, Stage, publish
from .trainer import ParallelTrainer, ordered_rows, run_trainer, trainer_settings


class ResponseTrainer(ParallelTrainer, SFTTrainer):  # type: ignore[misc]
    """trl's trainer, with the language head run only on labelled positions.

    On a CPU, trl runs the head on every position, including prompts, which for a small model with a large vocabulary
    is a third of all work. On a GPU it does not, and its own loss is used.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the mean cross-entropy over the response tokens of the optimiser step."""
        if device() != CPU or return_outputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels_BT = inputs["labels"][:, 1:]
        is_learnt_BT = labels_BT != IGNORED
        trunk, head = model.get_base_model().base_model, model.get_base_model().get_output_embeddings()
        read = trunk(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False)
        logits_NV = head(read.last_hidden_state[:, :-1][is_learnt_BT])
        total = cross_entropy(logits_NV.float(), labels_BT[is_learnt_BT], reduction="sum")
        return total / (is_learnt_BT.sum() if num_items_in_batch is None else num_items_in_batch)


class Labelled(Protocol):
    """Tokens, and labels at the tokens to learn."""

    @property
    def ids(self) -> list[int]: ...

    @property
    def labels(self) -> list[int]: ...


def imitate(
    stage: Stage,
    optimizer: Optimizer,
    data: Iterable[Labelled],
    start: Path | None = None,
    counts: Mapping[str, Any] = MappingProxyType({}),
    save_as: torch.dtype = torch.float32,
) -> None:
    """Train an adapter on the labelled tokens, starting from the adapter in `start` or a fresh one, and publish it.

    `counts` are added to the metrics; the weights are saved in the dtype `save_as`.

    Raises:
        ConfigError: a sample is longer than train.max_length, or the shape of the adapter is not that of train.lora.
    """
    meter, train = Meter(), stage.experiment.train
    texts = ({"input_ids": sample.ids, "labels": sample.labels} for sample in data)
    rows = write_rows(texts, ("input_ids", "labels"), stage.experiment.folder)
    lengths = rows.lengths("input_ids")
    require_length(lengths, train.max_length, "samples")
    require_room(stage, max(lengths, default=0))
    ordered = ordered_rows(rows, lengths, optimizer, stage.experiment.seed)
    trainer = response_trainer(train, trainer_settings(stage, optimizer), ordered, start)
    if start:
        reload_weights(trainer.model, start)
    progress = run_trainer(trainer, stage, len(rows) * optimizer.epochs)
    for parameter in trainable(trainer.model):
        parameter.data = parameter.data.to(save_as)
    metrics = {"samples": len(rows), **counts} | progress | meter.read(sum(lengths) * optimizer.epochs)
    publish(stage, trainer.model.save_pretrained, metrics)


def response_trainer(train: Train, settings: dict[str, Any], rows: Any, start: Path | None = None) -> Any:
    """Return the trainer of the adapter in `start`, or of a fresh one, on `rows` of input_ids and labels."""
    base = load_base(train)
    return ResponseTrainer(
        model=load_adapter(base, start, train.lora) if start else base,
        peft_config=None if start else lora_config(train.lora),
        args=SFTConfig(**settings, packing=False),
        processing_class=load_tokenizer(train),
        train_dataset=rows,
    )
