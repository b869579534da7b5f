"""Files of a base model: which of them hold its weights, and checks of all of them before anything is loaded."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from retroformer.errors import ConfigError, DamagedFile, RetroformerError, first_line

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Patterns of the files with weights, in the order in which transformers prefers them."""
SETTINGS = ("config.json", "tokenizer_config.json")
"""Files in which a model can name Python code of its own."""


def weight_files(folder: Path) -> list[Path]:
    """Return the files with the weights of the model in `folder`; `.bin` files only if there are no safetensors."""
    return next((files for pattern in WEIGHTS if (files := sorted(folder.glob(pattern)))), [])


def weights_index(folder: Path) -> Path | None:
    """Return the file that lists the shards of the weights in `folder`; None if they are in one file."""
    # A copy from the hub can also have the index of the other kind, without its files.
    kind = next((path.suffix for path in weight_files(folder)), None)
    return next(folder.glob(f"*{kind}.index.json"), None)


def weights_of(path: Path) -> dict[str, Any]:
    """Return the weights in a file by name, as tensors without numbers: only shapes and types are read.

    Raises:
        DamagedFile: the file is cut short, or holds something other than weights. No code in it runs.
    """
    from transformers.modeling_utils import load_state_dict

    try:
        weights = load_state_dict(path, map_location="meta", weights_only=True)
        if not isinstance(weights, dict) or not all(hasattr(weight, "shape") for weight in weights.values()):
            raise UnpicklingError
    except UnpicklingError:
        reason = "it holds something other than weights, which could be code, and nothing of it was run"
        raise damaged_base(path, ValueError(reason)) from None
    except Exception as error:  # What a library raises on garbage is its own affair.
        raise damaged_base(path, error) from None
    return weights


def require_no_code(folder: Path) -> None:
    """Raise ConfigError if the model in `folder` comes with Python code of its own, which transformers could run."""
    for path in (folder / name for name in SETTINGS):
        if path.is_file() and "auto_map" in _content(path):
            raise ConfigError(
                f"{path} names Python code of the model's own (auto_map), which is never run: set train.base_model to "
                "a model without such code, or delete the entry if transformers itself has this architecture."
            )


def require_sound_base(folder: Path) -> None:
    """Raise DamagedFile if a file of the base model in `folder` is truncated, unreadable or missing."""
    for path in (path for pattern in ("*config.json", "tokenizer*.json") for path in folder.glob(pattern)):
        _content(path)
    if index := weights_index(folder):
        for part in sorted(set(_content(index).get("weight_map", {}).values())):
            if not (folder / part).is_file():
                raise damaged_base(folder / part, FileNotFoundError(f"it is missing, but {index.name} lists it"))
    for path in weight_files(folder):
        weights_of(path)


def damaged_base(path: Path, error: Exception) -> DamagedFile:
    """Return the error for a file or folder of a base model that cannot be read."""
    return DamagedFile(
        f"The base model cannot be read: {path} is damaged ({first_line(error)}). Put the model's files there again; "
        "`embedded` and models from the hub are restored automatically when their folder is deleted."
    )


@contextmanager
def reading_base(folder: Path) -> Iterator[None]:
    """Translate a library's errors to DamagedFile, in a block that reads the base model in `folder`."""
    from safetensors import SafetensorError

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


def _content(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises DamagedFile."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise damaged_base(path, error) from None
