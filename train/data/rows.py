"""Tokenised rows on disk, so that memory holds only the current batch.

Every process writes an unnamed temporary file, which disappears with the process however it ends.
"""

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from ..integrity import writing_to

Item = TypeVar("Item", bound=NamedTuple)
CHUNK_ROWS = 1000
"""Rows that are in memory while they are written."""


class Rows(Sequence[Item]):
    """Named tuples of token lists, memory-mapped from a file."""

    def __init__(self, table: Any, kind: type[Item]) -> None:
        self._table, self._kind = table, kind

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._kind._make(self._table.slice(range(len(self))[index], 1).to_pylist()[0].values())

    def __iter__(self) -> Iterator[Item]:
        for batch in self._table.to_batches():
            yield from (self._kind._make(row.values()) for row in batch.to_pylist())


def write_rows(rows: Iterable[Item], kind: type[Item], folder: Path) -> Rows[Item]:
    """Write `rows` of one `kind` one by one to a temporary file in `folder`. Raises OSError: the disk is full."""
    import pyarrow as pa  # Here, since `train plan` and the GPU kit train without rows on disk.

    folder.mkdir(parents=True, exist_ok=True)
    tokens, remaining = pa.list_(pa.int32()), iter(rows)
    schema = pa.schema([(name, tokens) for name in kind._fields])
    # Not in the system's temporary folder, which may be held in memory.
    with writing_to(folder), tempfile.TemporaryFile(dir=folder) as file:
        with pa.ipc.new_stream(file, schema) as stream:
            while batch := list(islice(remaining, CHUNK_ROWS)):
                arrays = [pa.array(column, tokens) for column in zip(*batch, strict=True)]
                stream.write_batch(pa.record_batch(arrays, schema=schema))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Rows(pa.ipc.open_stream(pa.py_buffer(mapped)).read_all(), kind)
