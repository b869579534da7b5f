"""A full disk, in the one way that commands know to tell."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retroformer.errors import RetroformerError

FULL_BYTES = 2**20
"""Less than this is free where a write has just failed for want of room."""


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Within this `folder` is written to by torch and safetensors, which tell of a full disk in words of their own.

    Raises:
        OSError: whatever failed, the disk of `folder` is full.
    """
    try:
        yield
    except (OSError, RetroformerError):
        raise
    except Exception as error:
        there = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        full = os.strerror(errno.ENOSPC)
        # safetensors says it and takes back what it wrote; torch does neither.
        if full in str(error) or shutil.disk_usage(there).free < FULL_BYTES:
            raise OSError(errno.ENOSPC, full, str(folder)) from error
        raise
