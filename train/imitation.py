"""Supervised fine-tuning: on advice written by rule (`warm`) or rated positive (`sft`; Retroformer, appendix C), and
on scripted play (`actor`).

Reads tokens with labels; writes a LoRA adapter to runs/NAME/STAGE. Only labelled tokens carry loss.
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

from retroformer.train_sections import Optimizer, Train
from train.base import CPU, device, load_adapter, load_base, load_tokenizer, lora_config, put_back
from train.dataset import IGNORED, require_length
from train.rows import write_rows
from train.stage import Meter, Stage, publish
from train.supervised import DealingTrainer, ordered_rows, run_trainer, trainer_settings


class ResponseTrainer(DealingTrainer, SFTTrainer):  # type: ignore[misc]
    """trl's trainer, with the language head run on labelled positions alone.

    On a CPU, trl runs the head on every position, prompts included, which for a small model with a large vocabulary
    is a third of all work. On a GPU it does not, and its own loss is used.
    """

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The mean cross-entropy over the response tokens of the optimiser step."""
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
    """Tokens, and which of them to learn."""

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
    """Train an adapter to say the labelled tokens, from the adapter in `start` or a fresh one; publish it.

    Raises:
        ConfigError: a sample is longer than train.max_length, or `start` has another shape than the page asks for.
    """
    meter, page = Meter(), stage.experiment.train
    texts = ({"input_ids": sample.ids, "labels": sample.labels} for sample in data)
    rows = write_rows(texts, ("input_ids", "labels"), stage.experiment.folder)
    lengths = rows.lengths("input_ids")
    require_length(lengths, page.max_length, "samples")
    ordered = ordered_rows(rows, lengths, optimizer, stage.experiment.seed)
    trainer = response_trainer(page, trainer_settings(stage, optimizer), ordered, start)
    if start:
        put_back(trainer.model, start)
    told = run_trainer(trainer, stage, len(rows) * optimizer.epochs)
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(save_as)
    metrics = {"samples": len(rows), **counts} | told | meter.read(sum(lengths) * optimizer.epochs)
    publish(stage, lambda folder: trainer.model.save_pretrained(folder), metrics)


def response_trainer(page: Train, settings: dict[str, Any], rows: Any, start: Path | None = None) -> Any:
    """The trainer of the adapter in `start`, or of a fresh one, on `rows` of input_ids and labels."""
    base = load_base(page)
    return ResponseTrainer(
        model=load_adapter(base, start, page.lora) if start else base,
        peft_config=None if start else lora_config(page.lora),
        args=SFTConfig(**settings, packing=False),
        processing_class=load_tokenizer(page),
        train_dataset=rows,
    )
