"""Behaviour cloning of an actor: trains an adapter on scripted play to act, and to follow advice.

This is not part of Retroformer's method. It makes the frozen actor of the experiments, once, before any of them.
Reads the demonstrations of the config's environment; writes a LoRA adapter in bf16 to runs/NAME/actor.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from retroformer.environments.extras import Demonstration
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.train import Demonstrations
from retroformer.progress import line

from . import processes
from .base import CPU, device, keep_trainables_in_fp32, load_base, load_tokenizer, lora_config, trainable
from .data.rows import write_rows
from .data.samples import IGNORED, order_of_training, require_length
from .room import require_room
from .stage import Meter, Stage, publish
from .stage_kinds import DEMONSTRATED_ACTIONS
from .trainer import ParallelTrainer, run_trainer, trainer_settings


class LabelledText(NamedTuple):
    """The tokens of a demonstration, and their labels."""

    ids: list[int]
    labels: list[int]


def scripted_play(experiment: Experiment) -> list[Demonstration]:
    """Play the demonstrations that the config asks for.

    Raises:
        ConfigError: the environment has no scripted play.
        MissingInput: the environment's data are missing.
    """
    section, settings = experiment.environment, experiment.train.actor
    play = extras(section).demonstrations
    if play is None:
        raise ConfigError(f"There is no scripted play for {section.name}: set environment.name to another environment.")
    demonstrations = list[Demonstration]()
    with line("demonstrations", settings.demonstrations, 0, console=processes.screen()) as progress:
        for demonstration in play(
            section, settings.demonstrations, DEMONSTRATED_ACTIONS, experiment.seed, settings.wording
        ):
            demonstrations.append(demonstration)
            progress.show(len(demonstrations), "")
    return demonstrations


def clone(stage: Stage, demonstrations: Sequence[Demonstration]) -> None:
    """Train on the demonstrations, and publish the adapter in bf16, the dtype in which it is served.

    Raises:
        ConfigError: a demonstration is longer than train.max_length.
        RuntimeError: trl has dropped a row, which would be a silent fault.
    """
    meter, train, optimizer = Meter(), stage.experiment.train, stage.experiment.train.actor
    tokenizer = load_tokenizer(train)
    texts = (labelled_text(tokenizer, demonstration) for demonstration in demonstrations)
    columns = ({"input_ids": text.ids, "labels": text.labels} for text in texts)
    rows = write_rows(columns, ("input_ids", "labels"), stage.experiment.folder)
    lengths = rows.lengths("input_ids")
    require_length(lengths, train.max_length, "samples")
    require_room(stage, max(lengths, default=0))
    order = order_of_training(lengths, optimizer.batch_size, 1, stage.experiment.seed)
    trainer = response_trainer(stage, optimizer, rows.in_order(order))
    if (kept := len(trainer.train_dataset)) != len(order):
        raise RuntimeError(f"The trainer holds {kept} rows of {len(order)}: it cut or dropped some.")
    progress = run_trainer(trainer, stage)
    for parameter in trainable(trainer.model):
        parameter.data = parameter.data.to(torch.bfloat16)
    metrics = {"samples": len(rows), **counts(demonstrations)} | progress
    cost = meter.read(sum(lengths), progress["resumed_from_step"])
    publish(stage, trainer.model.save_pretrained, metrics | cost)


def response_trainer(stage: Stage, optimizer: Demonstrations, rows: Any) -> Any:
    """Return the trainer of a fresh adapter on `rows` of input_ids and labels, in their order."""
    settings = trainer_settings(stage, optimizer) | {
        "per_device_train_batch_size": optimizer.micro_batch_size,
        "gradient_accumulation_steps": optimizer.batch_size // optimizer.micro_batch_size,
        "activation_checkpointing": device() != CPU,
        "max_length": None,  # The rows were checked, and trl must not cut them.
        "packing": False,
    }
    train = stage.experiment.train
    base = load_base(train)
    trainer = ResponseTrainer(
        model=base,
        peft_config=lora_config(base, train.lora),
        args=SFTConfig(**settings),
        processing_class=load_tokenizer(train),
        train_dataset=rows,
    )
    keep_trainables_in_fp32(trainer.model)
    return trainer


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


def labelled_text(tokenizer: Any, demonstration: Demonstration) -> LabelledText:
    """Tokenise the whole text of a demonstration, and label the tokens of the actor's own words."""
    encoded = tokenizer(demonstration.text, add_special_tokens=False, return_offsets_mapping=True)
    own = [is_own for piece, is_own in demonstration.pieces for _ in piece]
    labels = [
        token if own[start] else IGNORED
        for token, (start, _) in zip(encoded.input_ids, encoded.offset_mapping, strict=True)
    ]
    return LabelledText(list(encoded.input_ids), labels)


def counts(demonstrations: Sequence[Demonstration]) -> dict[str, Any]:
    """Count demonstrations and games, demonstrations by kind, and those that end solved by kind."""
    return {
        "demonstrations": len(demonstrations),
        "games": len({demonstration.task_id for demonstration in demonstrations}),
        "kinds": dict(sorted(Counter(demonstration.kind for demonstration in demonstrations).items())),
        "solved": dict(sorted(Counter(each.kind for each in demonstrations if each.solved).items())),
    }
