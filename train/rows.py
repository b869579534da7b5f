"""Tokenised rows on the disk, so that memory holds those of the batch at hand and not those of the whole stage.

Every process writes a file of its own, without a name: it goes with the process, however that ends.
"""

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import pyarrow as pa
import pyarrow.compute
from datasets import Dataset
from datasets.table import InMemoryTable

from train.dataset import Sample, SamplePair
from train.disk import writing_to

TOKENS = pa.list_(pa.int32())
AT_ONCE = 1000
"""Rows that are in memory while they are written."""


class Rows(Sequence[dict[str, list[int]]]):
    """Rows of token lists by the names of their columns, mapped from a file."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> dict[str, list[int]]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, list[int]]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._table.slice(range(len(self))[index], 1).to_pylist()[0]

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        for batch in self._table.to_batches():
            yield from batch.to_pylist()

    def lengths(self, column: str) -> list[int]:
        """The number of tokens of each row in a column."""
        numbers: list[int] = pyarrow.compute.list_value_length(self._table[column]).to_pylist()
        return numbers

    def in_order(self, order: Sequence[int]) -> Dataset:
        """The rows of these numbers, as trainers read them; none is copied."""
        # The fingerprints name caches of `datasets`, which nothing here uses; it would hash all rows for them.
        return Dataset(InMemoryTable(self._table), fingerprint="rows").select(order, new_fingerprint="ordered")


class Pairs(Sequence[SamplePair]):
    """Pairs of samples, mapped from a file."""

    def __init__(self, rows: Rows) -> None:
        """`rows` have the columns of `as_row`."""
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> SamplePair: ...
    @overload
    def __getitem__(self, index: slice) -> list[SamplePair]: ...
    def __getitem__(self, index: int | slice) -> SamplePair | list[SamplePair]:
        if isinstance(index, slice):
            return [_pair(row) for row in self.rows[index]]
        return _pair(self.rows[index])

    def __iter__(self) -> Iterator[SamplePair]:
        return map(_pair, iter(self.rows))


def write_rows(rows: Iterable[Mapping[str, Sequence[int]]], columns: Sequence[str], folder: Path) -> Rows:
    """Write `rows`, as they come, to a file in the file system of `folder`.

    Raises:
        OSError: the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    schema, left = pa.schema([(name, TOKENS) for name in columns]), iter(rows)
    # Not in the system's folder for temporary files, which may be memory.
    with writing_to(folder), tempfile.TemporaryFile(dir=folder) as file:
        with pa.ipc.new_stream(file, schema) as stream:
            while some := list(islice(left, AT_ONCE)):
                arrays = [pa.array([row[name] for row in some], TOKENS) for name in columns]
                stream.write_batch(pa.record_batch(arrays, schema=schema))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Rows(pa.ipc.open_stream(pa.py_buffer(mapped)).read_all())


def write_pairs(pairs: Iterable[SamplePair], folder: Path) -> Pairs:
    """Write `pairs`, as they come. Raises OSError: the disk is full."""
    return Pairs(write_rows(map(as_row, pairs), ("prompt_ids", "chosen_ids", "rejected_ids"), folder))


def as_row(pair: SamplePair) -> dict[str, list[int]]:
    """A pair by the names that trl's collator knows; it puts the chosen ones first, padded at the right."""
    return {
        "prompt_ids": pair.chosen.prompt_ids,
        "chosen_ids": pair.chosen.response_ids,
        "rejected_ids": pair.rejected.response_ids,
    }


def _pair(row: Mapping[str, list[int]]) -> SamplePair:
    prompt_ids = row["prompt_ids"]
    return SamplePair(Sample(prompt_ids, row["chosen_ids"]), Sample(prompt_ids, row["rejected_ids"]))
