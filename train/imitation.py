"""Supervised fine-tuning on advice: written by rule (`warm`), or rated positive (`sft`; Retroformer, appendix C).

Reads texts with their prompts; writes a LoRA adapter to runs/NAME/{warm,sft}. Only the response carries loss.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from retroformer.config import Optimizer
from train.base import CPU, device, load_adapter, load_base, load_tokenizer, lora_config
from train.dataset import IGNORED, Prompt, require_length, samples
from train.stage import Meter, Stage, publish
from train.supervised import ordered_rows, run_trainer, trainer_settings


class ResponseTrainer(SFTTrainer):  # type: ignore[misc]
    """trl's trainer, with the language head run on responses alone.

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
        predicting = (labels_BT != IGNORED).any(dim=0).nonzero()[:, 0]
        logits_BTV = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            logits_to_keep=predicting,
            use_cache=False,
        ).logits
        kept_BT = labels_BT[:, predicting]
        total = cross_entropy(
            logits_BTV.flatten(0, 1).float(), kept_BT.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / ((kept_BT != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch)


def imitate(stage: Stage, optimizer: Optimizer, texts: Sequence[tuple[Prompt, str]], start: Path | None) -> None:
    """Train an adapter to say `texts` after their prompts, from the adapter in `start` or a fresh one; publish it.

    Raises:
        ConfigError: a sample is longer than train.max_length, or `start` has another shape than the page asks for.
    """
    meter, page = Meter(), stage.experiment.train
    tokenizer = load_tokenizer(page)
    data = samples(tokenizer, texts)
    lengths = [len(sample.ids) for sample in data]
    require_length(lengths, page.max_length, "samples")
    rows = [{"input_ids": sample.ids, "labels": sample.labels} for sample in data]
    base = load_base(page)
    trainer: Any = ResponseTrainer(
        model=load_adapter(base, start, page.lora) if start else base,
        peft_config=None if start else lora_config(page.lora),
        args=SFTConfig(**trainer_settings(stage, optimizer), packing=False),
        processing_class=tokenizer,
        train_dataset=ordered_rows(rows, lengths, optimizer, stage.experiment.seed),
    )
    told = run_trainer(trainer, stage, len(rows) * optimizer.epochs)
    counts = {"samples": len(rows), "samples_with_duplicates": len(texts)}
    metrics = counts | told | meter.read(sum(lengths) * optimizer.epochs)
    publish(stage, lambda folder: trainer.model.save_pretrained(folder), metrics)
