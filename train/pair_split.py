"""Preference pairs as tokens, split by task into training and held-out pairs; `reward` and `dpo` use the same split."""

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from retroformer.config.experiment import Experiment
from retroformer.method.records import PreferencePair

from .adapter import Adapter
from .data.rows import write_rows
from .data.samples import SamplePair, sample_pairs
from .preflight import preflight
from .shared_prompt.packed import Group, Groups
from .stage import Stage

HELD_OUT_SHARE = 0.1
"""Share of the tasks that is held out."""
MEASURED_PAIRS = 64
"""Training pairs, about, on which accuracy and scores are measured; measuring all of them would cost half an epoch."""


class PairSplit(NamedTuple):
    """Training pairs, and pairs of the tasks that are held out, both grouped by prompt."""

    train: Groups
    held_out: Groups
    held_out_tasks: set[str]
    read_by_start: int | None
    """Number of held-out tasks that the starting adapter was trained on, so that it may have imitated the better texts
    of their pairs (`train.sft.texts`); None for a fresh adapter, or if it does not record its tasks."""

    @property
    def tokens(self) -> int:
        """Tokens of all training pairs, with each prompt and each text once."""
        return sum(self.train.lengths)

    @property
    def counts(self) -> dict[str, Any]:
        """Entries for the metrics of a stage."""
        return {
            "pairs": sum(self.train.sizes),
            "held_out_pairs": sum(self.held_out.sizes),
            "held_out_tasks": sorted(self.held_out_tasks),
            **({} if self.read_by_start is None else {"held_out_tasks_read_by_start": self.read_by_start}),
        }

    def measured(self, seed: int) -> list[Group]:
        """Draw training groups to measure, which have about `MEASURED_PAIRS` pairs."""
        drawn, pairs = list[Group](), 0
        for number in random.Random(seed).sample(range(len(self.train)), len(self.train)):
            if pairs >= MEASURED_PAIRS:
                break
            drawn.append(self.train[number])
            pairs += self.train.sizes[number]
        return drawn


def split_pairs(
    stage: Stage, tokenizer: Any, pairs: Sequence[PreferencePair], adapters: Mapping[str, Adapter]
) -> PairSplit:
    """Tokenise `pairs`, split them by task, and make the preflight of a stage with these adapters."""
    experiment = stage.experiment
    tasks = held_out_tasks([pair.task_id for pair in pairs], experiment.seed)
    train_pairs = (pair for pair in pairs if pair.task_id not in tasks)
    held_out_pairs = (pair for pair in pairs if pair.task_id in tasks)
    train = write_rows(sample_pairs(tokenizer, train_pairs), SamplePair, experiment.folder)
    held_out = write_rows(sample_pairs(tokenizer, held_out_pairs), SamplePair, experiment.folder)
    lengths = [len(pair.prompt_ids) + len(text) for pair in chain(train, held_out) for text in pair.responses]
    most = experiment.train.micro_batch_tokens
    read = _tasks_read(experiment, adapters["start"]) if "start" in adapters else None
    read_by_start = None if read is None else len(tasks & read)
    split = PairSplit(Groups(train, most), Groups(held_out, most), tasks, read_by_start)
    longest = max((*split.train.lengths, *split.held_out.lengths), default=0)
    preflight(stage, "samples of pairs", lengths, longest, adapters)
    return split


def _tasks_read(experiment: Experiment, adapter: Adapter) -> set[str] | None:
    """Return the tasks of an experiment that an adapter was trained on; None if it does not record its tasks."""
    if (recorded := adapter.metrics.training_domains) is None:
        return None
    known = (training.tasks for training in recorded if any(map(training.are_of, experiment.each_domain)))
    return set(chain.from_iterable(known))


def in_pairs(values_R: Tensor, groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """Return values of responses by pair: those of the better responses, (P,), and of the worse, (P,)."""
    firsts = [0]
    for group in groups:
        firsts.append(firsts[-1] + len(group.responses))
    numbers = [
        (first + better, first + worse)
        for first, group in zip(firsts, groups, strict=False)
        for better, worse in group.pairs
    ]
    better_P, worse_P = torch.tensor(numbers, device=values_R.device).unbind(dim=1)
    return values_R[better_P], values_R[worse_P]


def weights_of_pairs(groups: Sequence[Group], batch: Sequence[Group], pair_weight: str) -> Tensor:
    """Return the weight of each pair of `groups` in the loss of their batch, (P,); those of the batch sum to 1."""
    if pair_weight == "equal":
        pairs = sum(len(group.pairs) for group in batch)
        return torch.tensor([1 / pairs for group in groups for _ in group.pairs])
    failures = sum(group.share for group in batch)
    return torch.tensor([group.share / len(group.pairs) / failures for group in groups for _ in group.pairs])


def held_out_tasks(task_ids: Sequence[str], seed: int) -> set[str]:
    """Choose a tenth of the tasks, at least one if there are two; the choice depends on the tasks and the seed only."""
    tasks = sorted(set(task_ids), key=lambda task: hashlib.sha256(f"{seed} {task}".encode()).digest())
    return set(tasks[: math.ceil(HELD_OUT_SHARE * len(tasks))]) if len(tasks) > 1 else set()
