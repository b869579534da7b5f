"""Rows on the disk: the trainers read from them the batches that rows in memory would give."""

import json
import weakref
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from retroformer.records import PreferencePair
from retroformer.train_sections import Optimizer
from tests.train.world import BAD, GOOD, experiment, prompt, save_adapter
from train.base import load_tokenizer
from train.dataset import order_of_training, sample_pairs, samples
from train.dpo import as_row, pair_trainer
from train.imitation import response_trainer
from train.reward import order_trainer
from train.rows import AT_ONCE, write_pairs, write_rows
from train.stage import Stage, make_stage
from train.supervised import ordered_rows, trainer_settings

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
OPTIMIZER = Optimizer(learning_rate=1e-3, batch_size=4, micro_batch_size=2, epochs=3)
TEXTS = [(prompt("task " * (1 + number % 5)), f"{GOOD} {number}") for number in range(21)]
PAIRS = [
    PreferencePair(task_id=f"{number}", prompt=asked, chosen=text, rejected=BAD, margin=1.0)
    for number, (asked, text) in enumerate(TEXTS)
]


class Row(dict[str, list[int]]):
    """Can be referred to weakly, which a dict cannot."""


def batches(trainer: Any) -> list[dict[str, torch.Tensor]]:
    return list(trainer.get_train_dataloader())


def require_equal(ours: list[dict[str, torch.Tensor]], theirs: list[dict[str, torch.Tensor]]) -> None:
    assert len(ours) == len(theirs) > 30
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


def in_memory(rows: list[dict[str, list[int]]], lengths: list[int]) -> Dataset:
    """The rows of all epochs as a list, as the definition has them."""
    order = order_of_training(lengths, OPTIMIZER.batch_size, OPTIMIZER.epochs, 0)
    return Dataset.from_list([rows[index] for index in order])


@pytest.fixture
def stage(tiny_base: Path, workplace: Path) -> Stage:
    return make_stage("dpo", experiment(workplace, tiny_base), OPTIMIZER, [], {})


def test_imitation_reads_the_batches_of_rows_in_memory(stage: Stage) -> None:
    page, settings = stage.experiment.train, trainer_settings(stage, OPTIMIZER)
    data = samples(load_tokenizer(page), TEXTS)
    rows: list[dict[str, list[int]]] = [{"input_ids": one.ids, "labels": one.labels} for one in data]
    stored = write_rows(rows, ("input_ids", "labels"), stage.experiment.folder)
    lengths = [len(one.ids) for one in data]
    assert stored.lengths("input_ids") == lengths
    ours = response_trainer(page, dict(settings), ordered_rows(stored, lengths, OPTIMIZER, 0))
    require_equal(batches(ours), batches(response_trainer(page, dict(settings), in_memory(rows, lengths))))


def test_the_reward_model_and_dpo_read_the_pairs_of_rows_in_memory(stage: Stage, workplace: Path) -> None:
    page, settings = stage.experiment.train, trainer_settings(stage, OPTIMIZER)
    pairs = sample_pairs(load_tokenizer(page), PAIRS)
    stored = write_pairs(pairs, stage.experiment.folder)
    assert list(stored) == pairs
    assert (stored[3], stored[-1], stored[4:6]) == (pairs[3], pairs[-1], pairs[4:6])
    lengths = [max(len(pair.chosen.ids), len(pair.rejected.ids)) for pair in pairs]
    whole = [{"chosen_ids": pair.chosen.ids, "rejected_ids": pair.rejected.ids} for pair in pairs]
    texts = write_rows(whole, ("chosen_ids", "rejected_ids"), stage.experiment.folder)
    ours = order_trainer(page, dict(settings), ordered_rows(texts, lengths, OPTIMIZER, 0))
    require_equal(batches(ours), batches(order_trainer(page, dict(settings), in_memory(whole, lengths))))
    save_adapter(stage.experiment, workplace / "sft")
    read = []
    for rows in (ordered_rows(stored.rows, lengths, OPTIMIZER, 0), in_memory([as_row(one) for one in pairs], lengths)):
        dpo = stage.experiment.train.dpo.model_copy(update=OPTIMIZER.model_dump())
        read.append(batches(pair_trainer(stage, dpo, dict(settings), workplace / "sft", 0, rows)))
    require_equal(*read)


def test_rows_are_written_as_they_come_and_leave_no_file(tmp_path: Path) -> None:
    """Of all the rows only those of a write are alive, and nothing is there for a kill to leave behind."""
    alive = most = 0

    def count(change: int) -> None:
        nonlocal alive, most
        alive += change
        most = max(most, alive)

    def made() -> Iterator[Row]:
        for number in range(5 * AT_ONCE):
            row = Row(ids=[number, number + 1])
            count(1)
            weakref.finalize(row, count, -1)
            yield row

    rows = write_rows(made(), ("ids",), tmp_path)
    assert 0 < most <= 2 * AT_ONCE + 1
    assert not list(tmp_path.iterdir())
    assert len(rows) == 5 * AT_ONCE
    assert [rows[number] for number in (0, 2345, -1)] == [{"ids": [n, n + 1]} for n in (0, 2345, 4999)]
    assert [row["ids"] for row in rows.in_order([4321, 0, 4321])] == [[4321, 4322], [0, 1], [4321, 4322]]


def test_no_rows_are_rows(tmp_path: Path) -> None:
    pairs = write_pairs([], tmp_path)
    assert (len(pairs), list(pairs), pairs[:2]) == (0, [], [])


@pytest.mark.parametrize("data", [[], ["a"], ["ä\n", {"role": "user"}], [[[{"b": 1, "a": None}], "text"], 1.5]])
def test_the_hash_of_data_that_is_read_once_is_that_of_the_whole_list(
    data: list[Any], tiny_base: Path, workplace: Path
) -> None:
    made = experiment(workplace, tiny_base)
    stage = make_stage("sft", made, OPTIMIZER, iter(data), {})
    assert stage.inputs["data"] == sha256(json.dumps(data).encode()).hexdigest()
