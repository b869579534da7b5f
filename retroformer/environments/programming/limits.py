"""Resource limits of judged code."""

from typing import Annotated

from pydantic import Field

from retroformer.records import Record

_MEBIBYTE = 1 << 20
Positive = Annotated[int, Field(ge=1)]


class Limits(Record):
    """Limits of one process. Exceeding the first two is a timeout, exceeding the others an error in the code."""

    cpu_seconds: Positive = 10
    """CPU seconds over all threads: for all hidden tests, or for one of an agent's own."""
    wall_seconds: Annotated[float, Field(gt=0)] = 40.0
    """Wall-clock seconds for one test: generous, since a busy machine makes code wait."""
    memory_bytes: Positive = 512 * _MEBIBYTE
    """Address space in bytes; the code has one process."""
    file_bytes: Positive = 16 * _MEBIBYTE
    """Maximum size of the largest file, and of all files together."""
    files: Positive = 256
    """Maximum number of files and folders."""
    threads: Positive = 32
    answer_bytes: Positive = 4 * _MEBIBYTE
    """Maximum size of one returned value, encoded."""


DEFAULT = Limits()
COMPILING = Limits(
    cpu_seconds=60,
    wall_seconds=120.0,
    memory_bytes=4096 * _MEBIBYTE,
    file_bytes=256 * _MEBIBYTE,
    files=4096,
    threads=256,
)
"""Limits of a compiler, which is trusted, and may start the linker."""
