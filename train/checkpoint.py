"""Checkpoints of PPO: one file each, complete or not there. The last two are kept."""

import re
from pathlib import Path
from typing import Any

import torch

from train import processes
from train.disk import writing_to
from train.shared_base import POLICY, SharedBase

KEPT = 2


def save(folder: Path, updates_done: int, model: SharedBase, optimizer: Any, history: list[dict[str, float]]) -> None:
    """Write what the next update needs; of several processes the main one does.

    Random states are not among it: every update seeds itself.

    Raises:
        OSError: the disk is full.
    """
    if not processes.is_main():
        return
    from peft import get_peft_model_state_dict

    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "unfinished"
    state = {
        "policy": get_peft_model_state_dict(model.language_model, adapter_name=POLICY),
        "value_head": model.value_head.state_dict(),
        "optimizer": optimizer.state_dict(),
        "history": history,
    }
    with writing_to(folder):
        torch.save(state, unfinished)
    unfinished.rename(folder / f"update-{updates_done:06d}.pt")
    for old in sorted(folder.glob("update-*.pt"))[:-KEPT]:
        old.unlink()


def restore(folder: Path, model: SharedBase, optimizer: Any) -> list[dict[str, float]]:
    """Put the newest checkpoint back; returns the facts of the updates that are done, none without a checkpoint."""
    from peft import set_peft_model_state_dict

    found = sorted(path for path in folder.glob("update-*.pt") if re.fullmatch(r"update-\d+\.pt", path.name))
    if not found:
        return []
    state = torch.load(found[-1], map_location=model.device, weights_only=True)
    set_peft_model_state_dict(model.language_model, state["policy"], adapter_name=POLICY)
    model.value_head.load_state_dict(state["value_head"])
    optimizer.load_state_dict(state["optimizer"])
    history: list[dict[str, float]] = state["history"]
    return history
