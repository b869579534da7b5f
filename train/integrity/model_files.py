"""Checks the files of adapters and base models: that they are undamaged and hold finite numbers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from retroformer.errors import DamagedFile, ProvenanceError, RetroformerError
from retroformer.provenance import ADAPTER_FILES, folder_sha256
from retroformer.stage_metrics import StageMetrics, first_line, how_to_replace

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


def require_sound_base(folder: Path) -> None:
    """Raise DamagedFile if a file of the base model in `folder` is truncated, unreadable or missing."""
    patterns = ("*config.json", "tokenizer*.json", "*.index.json")
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise damaged_base(path, error) from None
        parts = set(content.get("weight_map", {}).values()) if path.name.endswith(".index.json") else set()
        for part in sorted(part for part in parts if not (folder / part).is_file()):
            raise damaged_base(folder / part, FileNotFoundError(f"it is missing, but {path.name} lists it"))
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise damaged_base(path, error) from None


def damaged_base(path: Path, error: Exception) -> DamagedFile:
    """Return the error for a file or folder of a base model that cannot be read."""
    return DamagedFile(
        f"The base model cannot be read: {path} is damaged ({first_line(error)}). Put the model's files there again; "
        "`embedded` and models from the hub are restored automatically when their folder is deleted."
    )


@contextmanager
def reading_base(folder: Path) -> Iterator[None]:
    """Translate a library's errors to DamagedFile, in a block that reads the base model in `folder`."""
    try:
        yield
    except RetroformerError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise damaged_base(folder, error) from None
    except RuntimeError as error:
        if "mismatch" not in str(error):  # It may mean a GPU out of memory.
            raise
        raise damaged_base(folder, error) from None
    except Exception as error:
        if type(error) is not Exception:  # The library `tokenizers` raises plain Exception.
            raise
        raise damaged_base(folder, error) from None


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
