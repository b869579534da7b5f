"""Checkpoints of PPO, GRPO and SAC: one file each, written atomically, beside a manifest. The last two are kept."""

import pickle
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import torch

from retroformer.errors import DamagedFile, first_line
from retroformer.files import durable

from .. import processes
from ..integrity import newest_sound, verify, write_manifest, writing_to
from .policy import POLICY

KEPT = 2


class Checkpoints(NamedTuple):
    """Checkpoints in a folder. Random states are not in them, since every update sets its own seed."""

    folder: Path
    language_model: Any
    """Its adapter `policy` is kept."""
    parts: Mapping[str, Any]
    """Modules, optimisers and buffers that the next update needs beside the policy, by name."""

    def save(self, history: list[dict[str, float]]) -> None:
        """Write the state after the updates of `history`; only the main process writes.

        Raises:
            OSError: the disk is full.
        """
        if not processes.is_main():
            return
        from peft import get_peft_model_state_dict

        state = {
            "policy": get_peft_model_state_dict(self.language_model, adapter_name=POLICY),
            **{name: part.state_dict() for name, part in self.parts.items()},
            "history": history,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished, path = self.folder / "unfinished", self.folder / f"update-{len(history):06d}.pt"
        with writing_to(self.folder):
            torch.save(state, unfinished)
            durable.sync(unfinished)
            # Before the rename, so that every visible checkpoint can be verified.
            write_manifest(_manifest(path), {path.name: unfinished})
            durable.rename(unfinished, path)
        _delete_all_but(path, self.folder)

    def restore(self) -> list[dict[str, float]]:
        """Load the newest sound checkpoint; return the facts of the updates so far, or [] without a checkpoint.

        Raises:
            DamagedFile: there are checkpoints, and all of them are damaged, or of other parts.
        """
        from peft import set_peft_model_state_dict

        names, device = {"policy", *self.parts, "history"}, self.language_model.device
        state = newest_sound(self.folder, _checkpoints(self.folder), lambda path: _load(path, names, device))
        if state is None:
            return []
        set_peft_model_state_dict(self.language_model, state["policy"], adapter_name=POLICY)
        for name, part in self.parts.items():
            try:
                part.load_state_dict(state[name])
            except torch.OutOfMemoryError:
                raise
            except (KeyError, ValueError, RuntimeError) as error:
                raise DamagedFile(
                    f"The checkpoints in {self.folder} are of another version of this stage ({name}: "
                    f"{first_line(error)}): delete the folder, and the stage starts again."
                ) from None
        history: list[dict[str, float]] = state["history"]
        return history


def _load(path: Path, names: Set[str], device: torch.device) -> dict[str, Any]:
    verify(_manifest(path))
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except torch.OutOfMemoryError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        raise DamagedFile(f"{path.name} is no checkpoint of this stage ({type(error).__name__})") from None
    if not isinstance(state, dict) or state.keys() != names:
        raise DamagedFile(f"{path.name} is no checkpoint of this stage")
    return state


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("update-*.pt") if re.fullmatch(r"update-\d+\.pt", path.name))


def _manifest(checkpoint: Path) -> Path:
    return checkpoint.with_suffix(".json")


def _delete_all_but(newest: Path, folder: Path) -> None:
    """Keep the last checkpoints up to `newest`. Later ones are damaged, and were skipped when the stage resumed."""
    kept = [path for path in _checkpoints(folder) if path <= newest][-KEPT:]
    for path in (*_checkpoints(folder), *folder.glob("update-*.json")):
        if path.with_suffix(".pt") not in kept:
            path.unlink()
