"""Manifests of checkpoints: size and sha256 of every file, so that damage is detected before anything is loaded."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from retroformer.errors import DamagedFile
from retroformer.files import durable

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
