"""Tokenised rows on disk, so that memory holds only the current batch.

Every process writes an unnamed temporary file, which disappears with the process however it ends.
"""

import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, overload

from ..integrity import writing_to
from .samples import Sample, SamplePair

Item = TypeVar("Item")
Row = dict[str, list[int]]
CHUNK_ROWS = 1000
"""Rows that are in memory while they are written."""


class Rows(Sequence[Item]):
    """Rows of token lists by column name, memory-mapped from a file and read as `item` of each row."""

    def __init__(self, table: Any, item: Callable[[Row], Item]) -> None:
        self._table, self._item = table, item

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._item(self._table.slice(range(len(self))[index], 1).to_pylist()[0])

    def __iter__(self) -> Iterator[Item]:
        for batch in self._table.to_batches():
            yield from map(self._item, batch.to_pylist())

    def lengths(self, column: str) -> list[int]:
        """Return the number of tokens of each row in a column."""
        import pyarrow.compute

        numbers: list[int] = pyarrow.compute.list_value_length(self._table[column]).to_pylist()
        return numbers


def write_rows(rows: Iterable[Mapping[str, Sequence[int]]], columns: Sequence[str], folder: Path) -> Rows[Row]:
    """Write `rows` one by one to a temporary file in `folder`. Raises OSError: the disk is full."""
    return Rows(_write_table(rows, columns, folder), lambda row: row)


def write_samples(samples: Iterable[Sample], folder: Path) -> Rows[Sample]:
    """Write `samples` one by one to a temporary file in `folder`. Raises OSError: the disk is full."""
    rows = (sample._asdict() for sample in samples)
    return Rows(_write_table(rows, Sample._fields, folder), lambda row: Sample(**row))


def write_pairs(pairs: Iterable[SamplePair], folder: Path) -> Rows[SamplePair]:
    """Write `pairs` one by one to a temporary file in `folder`. Raises OSError: the disk is full."""
    columns = ("prompt_ids", "chosen_ids", "rejected_ids")
    tokens = ((pair.prompt_ids, pair.chosen.response_ids, pair.rejected.response_ids) for pair in pairs)
    rows: Iterator[Row] = (dict(zip(columns, row, strict=True)) for row in tokens)
    return Rows(_write_table(rows, columns, folder), lambda row: _pair(*(row[name] for name in columns)))


def _write_table(rows: Iterable[Mapping[str, Sequence[int]]], columns: Sequence[str], folder: Path) -> Any:
    import pyarrow as pa  # Here, since `train plan` and the GPU kit train without rows on disk.

    folder.mkdir(parents=True, exist_ok=True)
    tokens, remaining = pa.list_(pa.int32()), iter(rows)
    schema = pa.schema([(name, tokens) for name in columns])
    # Not in the system's temporary folder, which may be held in memory.
    with writing_to(folder), tempfile.TemporaryFile(dir=folder) as file:
        with pa.ipc.new_stream(file, schema) as stream:
            while batch := list(islice(remaining, CHUNK_ROWS)):
                arrays = [pa.array([row[name] for row in batch], tokens) for name in columns]
                stream.write_batch(pa.record_batch(arrays, schema=schema))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()


def _pair(prompt_ids: list[int], chosen_ids: list[int], rejected_ids: list[int]) -> SamplePair:
    return SamplePair(Sample(prompt_ids, chosen_ids), Sample(prompt_ids, rejected_ids))
