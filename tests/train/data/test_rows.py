"""Trainers get the same batches from rows on disk as from rows in memory."""

import json
import weakref
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from retroformer.experiment.sections.train import Optimizer
from retroformer.records import PreferencePair
from tests.train.world import BAD, GOOD, prompt, save_adapter, tiny_experiment
from train.base import load_tokenizer
from train.data.rows import AT_ONCE, write_pairs, write_rows
from train.data.samples import order_of_training, sample_pairs, samples
from train.dpo import as_row, pair_trainer
from train.imitation import response_trainer
from train.reward import score_trainer
from train.stage import Stage, make_stage
from train.trainer import ordered_rows, trainer_settings

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
OPTIMIZER = Optimizer(learning_rate=1e-3, batch_size=4, micro_batch_size=2, epochs=3)
TEXTS = [(prompt("task " * (1 + number % 5)), f"{GOOD} {number}") for number in range(21)]
PAIRS = [
    PreferencePair(task_id=f"{number}", prompt=asked, chosen=text, rejected=BAD, margin=1.0)
    for number, (asked, text) in enumerate(TEXTS)
]


class Row(dict[str, list[int]]):
    """A dict that weak references can refer to."""


def batches(trainer: Any) -> list[dict[str, torch.Tensor]]:
    return list(trainer.get_train_dataloader())


def require_equal(ours: list[dict[str, torch.Tensor]], theirs: list[dict[str, torch.Tensor]]) -> None:
    assert len(ours) == len(theirs) > 30
    for ours_row, theirs_row in zip(ours, theirs, strict=True):
        assert ours_row.keys() == theirs_row.keys()
        assert all(
            torch.equal(ours_row[name], theirs_row[name]) and ours_row[name].dtype == theirs_row[name].dtype
            for name in ours_row
        )


def in_memory(rows: list[dict[str, list[int]]], lengths: list[int]) -> Dataset:
    """Return the rows of all epochs as a list, by definition."""
    order = order_of_training(lengths, OPTIMIZER.batch_size, OPTIMIZER.epochs, 0)
    return Dataset.from_list([rows[index] for index in order])


@pytest.fixture
def stage(tiny_base: Path, workplace: Path) -> Stage:
    return make_stage("dpo", tiny_experiment(workplace, tiny_base), OPTIMIZER, [], {})


def test_imitation_reads_the_batches_of_rows_in_memory(stage: Stage) -> None:
    train, settings = stage.experiment.train, trainer_settings(stage, OPTIMIZER)
    data = list(samples(load_tokenizer(train), TEXTS))
    rows: list[dict[str, list[int]]] = [{"input_ids": sample.ids, "labels": sample.labels} for sample in data]
    stored = write_rows(rows, ("input_ids", "labels"), stage.experiment.folder)
    lengths = [len(sample.ids) for sample in data]
    assert stored.lengths("input_ids") == lengths
    ours = response_trainer(train, dict(settings), ordered_rows(stored, lengths, OPTIMIZER, 0))
    require_equal(batches(ours), batches(response_trainer(train, dict(settings), in_memory(rows, lengths))))


def test_the_reward_model_and_dpo_read_the_pairs_of_rows_in_memory(stage: Stage, workplace: Path) -> None:
    train, settings = stage.experiment.train, trainer_settings(stage, OPTIMIZER)
    pairs = list(sample_pairs(load_tokenizer(train), PAIRS))
    stored = write_pairs(pairs, stage.experiment.folder)
    assert list(stored) == pairs
    assert (stored[3], stored[-1], stored[4:6]) == (pairs[3], pairs[-1], pairs[4:6])
    lengths = [max(len(pair.chosen.ids), len(pair.rejected.ids)) for pair in pairs]
    whole = [{"chosen_ids": pair.chosen.ids, "rejected_ids": pair.rejected.ids} for pair in pairs]
    texts = write_rows(whole, ("chosen_ids", "rejected_ids"), stage.experiment.folder)
    ours = score_trainer(train, dict(settings), ordered_rows(texts, lengths, OPTIMIZER, 0))
    require_equal(batches(ours), batches(score_trainer(train, dict(settings), in_memory(whole, lengths))))
    save_adapter(stage.experiment, workplace / "sft")
    read = []
    for rows in (
        ordered_rows(stored, lengths, OPTIMIZER, 0),
        in_memory([as_row(pair) for pair in pairs], lengths),
    ):
        dpo = stage.experiment.train.dpo.model_copy(update=OPTIMIZER.model_dump())
        read.append(batches(pair_trainer(stage, dpo, dict(settings), workplace / "sft", 0, rows)))
    require_equal(*read)


def test_rows_are_written_as_a_stream_and_leave_no_file(tmp_path: Path) -> None:
    """Only the rows of one write are in memory, and a kill leaves no file."""
    alive = most = 0

    def count(change: int) -> None:
        nonlocal alive, most
        alive += change
        most = max(most, alive)

    def made_rows() -> Iterator[Row]:
        for number in range(5 * AT_ONCE):
            row = Row(ids=[number, number + 1])
            count(1)
            weakref.finalize(row, count, -1)
            yield row

    rows = write_rows(made_rows(), ("ids",), tmp_path)
    assert 0 < most <= 2 * AT_ONCE + 1
    assert not list(tmp_path.iterdir())
    assert len(rows) == 5 * AT_ONCE
    assert [rows[number] for number in (0, 2345, -1)] == [{"ids": [n, n + 1]} for n in (0, 2345, 4999)]
    assert [row["ids"] for row in rows.in_order([4321, 0, 4321])] == [[4321, 4322], [0, 1], [4321, 4322]]


def test_an_empty_list_of_rows_can_be_written(tmp_path: Path) -> None:
    pairs = write_pairs([], tmp_path)
    assert (len(pairs), list(pairs), pairs[:2]) == (0, [], [])


@pytest.mark.parametrize("data", [[], ["a"], ["ä\n", {"role": "user"}], [[[{"b": 1, "a": None}], "text"], 1.5]])
def test_the_hash_of_streamed_data_equals_that_of_the_whole_list(
    data: list[Any], tiny_base: Path, workplace: Path
) -> None:
    experiment = tiny_experiment(workplace, tiny_base)
    stage = make_stage("sft", experiment, OPTIMIZER, iter(data), {})
    assert stage.inputs["data"] == sha256(json.dumps(data).encode()).hexdigest()
