"""A lock on a file, which the system releases when the process ends, however it ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retroformer.errors import ServiceError


@contextmanager
def held_lock(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock for the duration of the block. Raises ServiceError if another process holds it.

    `doing` completes the sentence "Another process is ...".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ServiceError(
                f"Another process is {doing} (it holds {path}): wait for its end, or end it, and run the same command "
                "again."
            ) from None
        yield
