"""Finished adapters: read once by a command, and checked for damage and for numbers that are not finite."""

from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open

from retroformer.errors import DamagedFile, MissingInput, first_line
from retroformer.models.adapter_weights import lora_config
from retroformer.run.adapter_names import training_command
from retroformer.run.provenance import ADAPTER_FILES
from retroformer.run.stage_metrics import METRICS, StageMetrics, read_metrics, replacement_hint, require_unchanged

from .integrity import require_finite

CONFIG, WEIGHTS = ADAPTER_FILES


class Adapter(NamedTuple):
    """An adapter of a finished stage."""

    folder: Path
    sha256: str
    metrics: StageMetrics
    """What the stage wrote beside it; empty if there is nothing."""


def require_adapter(folder: Path) -> Adapter:
    """Read the adapter in `folder`, and check its files, and their hash if its metrics record it.

    Raises:
        MissingInput: there is no adapter.
        DamagedFile: a file is missing or cannot be read.
        NotFinite: a weight is infinite or not a number.
        ProvenanceError: the adapter was changed after training.
    """
    if not (folder / WEIGHTS).is_file():
        raise MissingInput(f"No adapter at {folder}: run {training_command(folder.name)} first.")
    return sound_adapter(folder, read_metrics(folder) if (folder / METRICS).is_file() else StageMetrics())


def sound_adapter(folder: Path, metrics: StageMetrics) -> Adapter:
    """Check the adapter in `folder`, whose `metrics` are read already, as `require_adapter` does."""
    try:
        lora_config(folder)
    except (OSError, ValueError) as error:
        raise _damaged(folder, CONFIG, error) from None
    require_finite_weights(folder, replacement_hint(folder))
    return Adapter(folder, require_unchanged(folder, metrics), metrics)


def require_finite_weights(folder: Path, what_now: str) -> None:
    """Check the weights of the adapter in `folder`; `what_now` ends the error message.

    Raises:
        DamagedFile: the weights cannot be read.
        NotFinite: a weight is infinite or not a number.
    """
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as weights:
            tensors = ((name, weights.get_tensor(name)) for name in sorted(weights.keys()))
            require_finite(tensors, f"in {folder / WEIGHTS}: {what_now}")
    except (OSError, SafetensorError) as error:
        raise _damaged(folder, WEIGHTS, error) from None


def _damaged(folder: Path, name: str, error: Exception) -> DamagedFile:
    """Return the error for a file of the adapter in `folder` that cannot be read."""
    return DamagedFile(f"{folder / name} is damaged ({first_line(error)}): {replacement_hint(folder)}")
