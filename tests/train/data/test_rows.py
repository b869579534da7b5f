"""Rows on disk are those that were written, and only the current ones are in memory."""

import json
import weakref
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retroformer.method.records import PreferencePair
from tests.train.world import BAD, GOOD, prompt, tiny_experiment
from train.base import load_tokenizer
from train.data.rows import CHUNK_ROWS, write_rows
from train.data.samples import AdviceText, Sample, SamplePair, sample_pairs, samples
from train.stage import make_stage

TEXTS = [AdviceText(prompt("task " * (1 + number % 5)), f"{GOOD} {number}") for number in range(21)]
PAIRS = [
    PreferencePair(task_id=f"{number}", prompt=asked, chosen=text, rejected=BAD, margin=1.0)
    for number, (asked, text, _) in enumerate(TEXTS)
]


class Row(NamedTuple):
    ids: list[int]


class Ids(list[int]):
    """A list that weak references can refer to."""


def test_rows_on_disk_are_the_samples_and_pairs_in_their_order(tiny_base: Path, workplace: Path) -> None:
    train = tiny_experiment(workplace, tiny_base).train
    data = list(samples(load_tokenizer(train), TEXTS))
    assert list(write_rows(data, Sample, workplace)) == data
    pairs = list(sample_pairs(load_tokenizer(train), PAIRS))
    stored = write_rows(pairs, SamplePair, workplace)
    assert list(stored) == pairs
    assert (stored[3], stored[-1], stored[4:6]) == (pairs[3], pairs[-1], pairs[4:6])


def test_rows_are_written_as_a_stream_and_leave_no_file(tmp_path: Path) -> None:
    """Only the rows of one write are in memory, and a kill leaves no file."""
    alive = most = 0

    def count(change: int) -> None:
        nonlocal alive, most
        alive += change
        most = max(most, alive)

    def made_rows() -> Iterator[Row]:
        for number in range(5 * CHUNK_ROWS):
            row = Row(Ids([number, number + 1]))
            count(1)
            weakref.finalize(row.ids, count, -1)
            yield row

    rows = write_rows(made_rows(), Row, tmp_path)
    assert 0 < most <= 2 * CHUNK_ROWS + 1
    assert not list(tmp_path.iterdir())
    assert len(rows) == 5 * CHUNK_ROWS
    assert [rows[number] for number in (0, 2345, -1)] == [Row([n, n + 1]) for n in (0, 2345, 4999)]


def test_an_empty_list_of_rows_can_be_written(tmp_path: Path) -> None:
    pairs = write_rows([], SamplePair, tmp_path)
    assert (len(pairs), list(pairs), pairs[:2]) == (0, [], [])


@pytest.mark.parametrize("data", [[], ["a"], ["ä\n", {"role": "user"}], [[[{"b": 1, "a": None}], "text"], 1.5]])
def test_the_hash_of_streamed_data_equals_that_of_the_whole_list(
    data: list[Any], tiny_base: Path, workplace: Path
) -> None:
    experiment = tiny_experiment(workplace, tiny_base)
    stage = make_stage("sft", experiment, iter(data), {})
    assert stage.inputs["data"] == sha256(json.dumps(data).encode()).hexdigest()
