"""Behaviour cloning of an actor: trains an adapter on scripted play to act, and to follow advice.

This is not part of Retroformer's method. It makes the frozen actor of the experiments, once, before any of them.
Reads the demonstrations of the config's environment; writes a LoRA adapter in bf16 to runs/NAME/actor.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from retroformer.config.experiment import Experiment
from retroformer.environments.extras import Demonstration
from retroformer.environments.registry import extras
from retroformer.run.progress import line

from . import processes
from .base import load_tokenizer, trainable
from .data.rows import write_rows
from .data.samples import IGNORED
from .group_trainer import training_batches
from .imitation import adapted
from .preflight import preflight
from .stage import Meter, Stage, publish
from .stage_kinds import ACTOR_ROWS
from .trainer import run_trainer
from .trl_trainers import MicroBatch, sft_trainer

LEARNING_RATE, BATCH_SIZE = 1e-3, 8
"""Peak learning rate, and demonstrations per optimiser step."""
MOST_ACTIONS = 20
"""Largest number of actions of a demonstration: the household actor of the package was trained with it."""


class LabelledText(NamedTuple):
    """The tokens of a demonstration, and their labels."""

    input_ids: list[int]
    labels: list[int]


def scripted_play(experiment: Experiment, count: int) -> list[Demonstration]:
    """Play `count` games of the environment's split.

    Raises:
        ConfigError: train.actor.obeys has no effect in this environment.
        MissingInput: the environment's data are missing.
    """
    section = experiment.environment
    play = extras(section).demonstrations
    assert play is not None, "the preflight refuses other environments"
    demonstrations = list[Demonstration]()
    with line("demonstrations", count, 0, console=processes.screen()) as progress:
        played = play(section, count, MOST_ACTIONS, experiment.seed, experiment.train.actor.obeys)
        for demonstration in played:
            demonstrations.append(demonstration)
            progress.show(len(demonstrations), "")
    return demonstrations


def clone(stage: Stage, demonstrations: Sequence[Demonstration]) -> None:
    """Train on the demonstrations, and publish the adapter in bf16, the dtype in which it is served."""
    meter, train = Meter(), stage.experiment.train
    tokenizer = load_tokenizer(train)
    texts = (labelled_text(tokenizer, demonstration) for demonstration in demonstrations)
    rows = write_rows(texts, LabelledText, stage.experiment.folder)
    lengths = [len(row.input_ids) for row in rows]
    preflight(stage, "samples", lengths, max(lengths, default=0), {})
    batches = training_batches([1] * len(rows), lengths, BATCH_SIZE, 1, stage.experiment.seed)

    def parts(number: int) -> Iterator[MicroBatch]:
        batch = [rows[index] for index in batches[number]]
        learnt = sum(label != IGNORED for row in batch for label in row.labels)
        for start in range(0, len(batch), ACTOR_ROWS):
            part = batch[start : start + ACTOR_ROWS]
            tokens = sum(len(row.input_ids) for row in part)
            yield MicroBatch([row._asdict() for row in part], tokens, learnt=learnt)

    torch.manual_seed(stage.experiment.seed)  # A fresh adapter is initialised at random.
    trainer = sft_trainer(stage, LEARNING_RATE, adapted(train, None), len(batches), parts)
    progress = run_trainer(trainer, stage)
    for parameter in trainable(trainer.model):
        parameter.data = parameter.data.to(torch.bfloat16)
    metrics = {"samples": len(rows), **counts(demonstrations)} | progress
    cost = meter.read(sum(lengths), progress["resumed_from_step"])
    publish(stage, trainer.model.save_pretrained, metrics | cost)


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
        "solved": dict(sorted(Counter(game.kind for game in demonstrations if game.solved).items())),
    }
