"""Checkpoints of PPO, GRPO and SAC: one file each, written atomically, beside a manifest. The last two are kept."""

import pickle
import re
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch

from retroformer.errors import DamagedFile
from retroformer.files import durable

from .. import processes
from ..integrity import newest_sound, verify, write_manifest, writing_to
from .policy import POLICY, SharedBase

KEPT = 2
PARTS = {"policy", "value_head", "optimizer", "history"}


def save(folder: Path, model: SharedBase, optimizer: Any, history: list[dict[str, float]]) -> None:
    """Write the state that the next update needs; only the main process writes.

    Random states are not included, since every update sets its own seed.
    """
    if not processes.is_main():
        return
    from peft import get_peft_model_state_dict

    state = {
        "policy": get_peft_model_state_dict(model.language_model, adapter_name=POLICY),
        "value_head": model.value_head.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": history,
    }
    save_state(folder, state)


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors and plain types as the checkpoint of its `history`. Raises OSError: the disk is full."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished, path = folder / "unfinished", folder / f"update-{len(state['history']):06d}.pt"
    with writing_to(folder):
        torch.save(state, unfinished)
        durable.sync(unfinished)
        # Before the rename, so that every visible checkpoint can be verified.
        write_manifest(_manifest(path), {path.name: unfinished})
        durable.rename(unfinished, path)
    _delete_all_but(path, folder)


def restore(folder: Path, model: SharedBase, optimizer: Any) -> list[dict[str, float]]:
    """Load the newest sound checkpoint; return the facts of the updates so far, or [] without a checkpoint."""
    from peft import set_peft_model_state_dict

    state = restore_state(folder, PARTS, model.device)
    if state is None:
        return []
    set_peft_model_state_dict(model.language_model, state["policy"], adapter_name=POLICY)
    model.value_head.load_state_dict(state["value_head"])
    optimizer.load_state_dict(state["optimizer"])
    history: list[dict[str, float]] = state["history"]
    return history


def restore_state(folder: Path, parts: Set[str], device: torch.device) -> dict[str, Any] | None:
    """Return the state of the newest sound checkpoint, which must have these parts; None without a checkpoint.

    Raises:
        DamagedFile: there are checkpoints, and all of them are damaged.
    """
    state: dict[str, Any] | None = newest_sound(folder, _checkpoints(folder), lambda path: _load(path, parts, device))
    return state


def _load(path: Path, parts: Set[str], device: torch.device) -> dict[str, Any]:
    verify(_manifest(path))
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except torch.OutOfMemoryError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise DamagedFile(f"{path.name} is no checkpoint of this stage ({type(error).__name__})") from None
    if not isinstance(state, dict) or state.keys() != parts:
        raise DamagedFile(f"{path.name} is no checkpoint of this stage")
    return state


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("update-*.pt") if re.fullmatch(r"update-\d+\.pt", path.name))


def _manifest(checkpoint: Path) -> Path:
    return checkpoint.with_suffix(".json")


def _delete_all_but(newest: Path, folder: Path) -> None:
    """Keep the last checkpoints up to `newest`. Later ones are damaged, and were skipped when the stage resumed."""
    kept = [path for path in _checkpoints(folder) if path <= newest][-KEPT:]
    for old in _checkpoints(folder):
        if old not in kept:
            old.unlink()
    for manifest in folder.glob("update-*.json"):
        if manifest.with_suffix(".pt") not in kept:
            manifest.unlink()
