"""Checks the files of adapters: that they are undamaged and hold finite numbers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from retroformer.errors import DamagedFile, ProvenanceError, first_line
from retroformer.provenance import ADAPTER_FILES, folder_sha256
from retroformer.stage_metrics import StageMetrics, how_to_replace

from .finite import require_finite

CONFIG, WEIGHTS = ADAPTER_FILES


def require_sound_adapter(folder: Path, metrics: StageMetrics) -> None:
    """Check the files of the adapter in `folder`, and their hash if `metrics` record it.

    Raises:
        DamagedFile: a file is missing or cannot be read.
        NotFinite: a weight is infinite or not a number.
        ProvenanceError: the adapter was changed after training.
    """
    try:
        _require_lora(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise damaged_adapter(folder, CONFIG, error) from None
    require_finite_weights(folder, how_to_replace(folder))
    recorded = metrics.adapter_sha256
    if recorded is not None and (sha256 := folder_sha256(folder)) != recorded:
        raise ProvenanceError(
            f"The adapter of {folder} has sha256 {sha256[:12]}, but had {recorded[:12]} after training: "
            f"{how_to_replace(folder)}"
        )


def require_finite_weights(folder: Path, what_now: str) -> None:
    """Check the weights of the adapter in `folder`; `what_now` ends the error message.

    Raises:
        DamagedFile: the weights cannot be read.
        NotFinite: a weight is infinite or not a number.
    """
    try:
        require_finite(_tensors(folder / WEIGHTS), f"in {folder / WEIGHTS}: {what_now}")
    except (OSError, SafetensorError) as error:
        raise damaged_adapter(folder, WEIGHTS, error) from None


def damaged_adapter(folder: Path, name: str, error: Exception) -> DamagedFile:
    """Return the error for a file of the adapter in `folder` that cannot be read."""
    return DamagedFile(f"{folder / name} is damaged ({first_line(error)}): {how_to_replace(folder)}")


def _require_lora(config: Any) -> None:
    """Raise ValueError if this is not a config that peft writes for a LoRA."""
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ValueError("no LoRA configuration")
    for name, kind in (("r", int), ("lora_alpha", int | float), ("target_modules", list | str)):
        if not isinstance(config.get(name), kind):
            raise ValueError(f"no {name}")


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as weights:
        for name in sorted(weights.keys()):
            yield name, weights.get_tensor(name)
