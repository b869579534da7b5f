"""Reports a full disk as OSError, whatever the library that writes has raised."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retroformer.errors import RetroformerError

FULL_BYTES = 2**20
"""With less free space than this after a failed write, the disk counts as full."""


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Translate the errors of torch and safetensors on a full disk, in a block that writes to `folder`.

    Raises:
        OSError: the disk of `folder` is full.
    """
    try:
        yield
    except (OSError, RetroformerError):
        raise
    except Exception as error:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        full = os.strerror(errno.ENOSPC)
        # safetensors names the cause and deletes what it wrote; torch does neither.
        if full in str(error) or shutil.disk_usage(existing).free < FULL_BYTES:
            raise OSError(errno.ENOSPC, full, str(folder)) from error
        raise
