"""Preference pairs as tokens, split by task into training and held-out pairs; `reward` and `dpo` use the same split."""

import hashlib
import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from retroformer.records import PreferencePair

from .data.rows import Rows, write_pairs
from .data.samples import SamplePair, require_length, sample_pairs
from .room import require_room
from .stage import Stage

HELD_OUT_SHARE = 0.1
"""Share of the tasks that is held out."""
MEASURED_PAIRS = 64
"""Training pairs on which accuracy and scores are measured; measuring all of them would cost half an epoch."""


class PairSplit(NamedTuple):
    """Training pairs, and pairs of the tasks that are held out."""

    train: Rows[SamplePair]
    held_out: Rows[SamplePair]
    held_out_tasks: set[str]

    @property
    def lengths(self) -> list[int]:
        """Tokens of the longer text of each training pair."""
        return [max(len(pair.chosen.ids), len(pair.rejected.ids)) for pair in self.train]

    @property
    def tokens(self) -> int:
        """Tokens of both texts of all training pairs."""
        return sum(len(sample.ids) for pair in self.train for sample in pair)

    @property
    def counts(self) -> dict[str, Any]:
        """Entries for the stage's metrics."""
        tasks = sorted(self.held_out_tasks)
        return {"pairs": len(self.train), "held_out_pairs": len(self.held_out), "held_out_tasks": tasks}

    def measured(self, seed: int) -> list[SamplePair]:
        """Draw the training pairs to measure."""
        return random.Random(seed).sample(self.train, min(MEASURED_PAIRS, len(self.train)))


def split_pairs(stage: Stage, tokenizer: Any, pairs: Sequence[PreferencePair]) -> PairSplit:
    """Tokenise `pairs`, and split them by task.

    Raises:
        ConfigError: a sample is longer than train.max_length, or the stage does not fit into the memory of a CPU.
    """
    experiment = stage.experiment
    tasks = held_out_tasks([pair.task_id for pair in pairs], experiment.seed)
    train_pairs = (pair for pair in pairs if pair.task_id not in tasks)
    held_out_pairs = (pair for pair in pairs if pair.task_id in tasks)
    train = write_pairs(sample_pairs(tokenizer, train_pairs), experiment.folder)
    held_out = write_pairs(sample_pairs(tokenizer, held_out_pairs), experiment.folder)
    lengths = [len(sample.ids) for pair in (*train, *held_out) for sample in pair]
    require_length(lengths, experiment.train.max_length, "samples of pairs")
    require_room(stage, max(lengths, default=0))
    return PairSplit(train, held_out, tasks)


def held_out_tasks(task_ids: Sequence[str], seed: int) -> set[str]:
    """Choose a tenth of the tasks, at least one if there are two; the choice depends on the tasks and the seed only."""
    tasks = sorted(set(task_ids), key=lambda task: hashlib.sha256(f"{seed} {task}".encode()).digest())
    return set(tasks[: math.ceil(HELD_OUT_SHARE * len(tasks))]) if len(tasks) > 1 else set()
