"""Keeps damaged files, full disks and numbers that are not finite out of training."""

import errno
import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from retroformer.errors import DamagedFile, NotFinite, RetroformerError
from retroformer.files import durable

LOWER_THE_RATE = (
    "no checkpoint contains it; lower the stage's learning_rate, or check the data and the adapters of earlier stages, "
    "and run the command again."
)


def require_finite(named: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Raise NotFinite for the first tensor with infinite numbers or NaN; `where` ends the message."""
    for name, tensor in named:
        # The extremes show it without a copy of the tensor.
        extremes = torch.aminmax(tensor.detach()) if tensor.is_floating_point() and tensor.numel() else ()
        if not all(bool(torch.isfinite(extreme)) for extreme in extremes):
            raise NotFinite(f"{name} holds infinite numbers or NaN {where}")


def require_finite_gradients(named: Iterable[tuple[str, nn.Parameter]], when: str) -> None:
    """Raise NotFinite for the first parameter whose gradient holds infinite numbers or NaN."""
    gradients = [(f"The gradient of {name}", parameter.grad) for name, parameter in named if parameter.grad is not None]
    # On a GPU, one look at the extremes of all costs less than one at each of them.
    extremes = torch._foreach_norm([gradient for _, gradient in gradients], math.inf) if gradients else ()
    if not all(torch.stack(tuple(extremes)).isfinite().tolist() if gradients else ()):
        require_finite(gradients, f"{when}: {LOWER_THE_RATE}")


def require_finite_scores(scores_B: Tensor) -> None:
    """Raise NotFinite if a score of the reward model is infinite or not a number."""
    require_finite([("The reward model's score", scores_B)], "on a response: train the reward model again.")


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


Loaded = TypeVar("Loaded")

logger = logging.getLogger(__name__)


def write_manifest(manifest: Path, files: Mapping[str, Path]) -> None:
    """Write size and sha256 of `files`, keyed by their paths relative to the manifest's folder."""
    facts = {name: _facts(path) for name, path in files.items()}
    durable.write_text(manifest, json.dumps({"files": facts}, indent=2) + "\n")


def verify(manifest: Path) -> None:
    """Compare the files beside a manifest with its entries. The error messages are causes, for `newest_sound`.

    Raises:
        DamagedFile: a file differs, or the manifest is missing or cannot be read.
    """
    if not manifest.exists():
        raise DamagedFile(f"it has no manifest {manifest.name}")
    try:
        files = dict(json.loads(manifest.read_text(encoding="utf-8"))["files"])
        if not files:
            raise ValueError("no files")
    except (OSError, ValueError, KeyError, TypeError):
        raise DamagedFile(f"its manifest {manifest.name} cannot be read") from None
    for name, written in files.items():
        path = manifest.parent / name
        if not path.is_file():
            raise DamagedFile(f"{name} is missing")
        if (facts := _facts(path)) != written:
            raise DamagedFile(f"{name} ({facts['bytes']} bytes) is not as it was written")


def newest_sound(folder: Path, checkpoints: Sequence[Path], load: Callable[[Path], Loaded]) -> Loaded | None:
    """Load the newest of `checkpoints` (oldest first) that `load` accepts; return None if there are no checkpoints.

    A warning names each checkpoint that is skipped.

    Raises:
        DamagedFile: `load` refused all of them.
    """
    causes: dict[Path, DamagedFile] = {}
    for checkpoint in reversed(checkpoints):
        try:
            loaded = load(checkpoint)
        except DamagedFile as damage:
            causes[checkpoint] = damage
            continue
        for skipped, cause in causes.items():
            logger.warning("Checkpoint %s is damaged (%s): training goes on from %s.", skipped, cause, checkpoint)
        return loaded
    if not causes:
        return None
    listed = ", ".join(f"{checkpoint.name}: {cause}" for checkpoint, cause in causes.items())
    raise DamagedFile(
        f"Every checkpoint in {folder} is damaged ({listed}): restore one from a copy, or delete the folder {folder} "
        "to begin again, and run the same command."
    )


def _facts(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
