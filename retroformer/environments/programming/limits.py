"""What judged code may use."""

from typing import Annotated

from pydantic import Field

from retroformer.records import Record

_MEBIBYTE = 1 << 20
Positive = Annotated[int, Field(ge=1)]


class Limits(Record):
    """Of one process of it. Beyond them: a timeout for the first two, an error in the code for the others."""

    cpu_seconds: Positive = 10
    """Of computing, all threads together: for all hidden tests, or for one of an agent's own."""
    wall_seconds: Annotated[float, Field(gt=0)] = 40.0
    """By the clock for one test: generous, since a busy machine makes code wait."""
    memory_bytes: Positive = 512 * _MEBIBYTE
    """Of address space; the code has one process."""
    file_bytes: Positive = 16 * _MEBIBYTE
    """Of the largest file, and of all files together."""
    files: Positive = 256
    """Files and folders."""
    threads: Positive = 32
    answer_bytes: Positive = 4 * _MEBIBYTE
    """Of one returned value, as sent."""


DEFAULT = Limits()
COMPILING = Limits(
    cpu_seconds=60,
    wall_seconds=120.0,
    memory_bytes=4096 * _MEBIBYTE,
    file_bytes=256 * _MEBIBYTE,
    files=4096,
    threads=256,
)
"""For a compiler, which is trusted, and may start the linker."""
