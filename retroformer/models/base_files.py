"""Files of a base model: which of them hold its weights, and checks of all of them before anything is loaded."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from retroformer.errors import ConfigError, DamagedFile, MissingInput, RetroformerError, first_line

WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""Patterns of the files with weights, in the order in which transformers prefers them."""
SETTINGS = "*config.json"
"""Pattern of the files in which a model can name Python code of its own."""


def weight_files(folder: Path) -> list[Path]:
    """Return the files with the weights of the model in `folder`; `.bin` files only if there are no safetensors."""
    return next((files for pattern in WEIGHTS if (files := sorted(folder.glob(pattern)))), [])


def shards(index: Path) -> list[Path]:
    """Return the shards that an index lists.

    Raises DamagedFile if it lists none, or a file by another name than those that are checked and hashed.
    """
    weights = json_object(index).get("weight_map")
    safetensors, binary = WEIGHTS
    pattern = binary if index.name.startswith("pytorch_model") else safetensors
    names = list(weights.values()) if isinstance(weights, dict) and weights else [None]
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not fnmatch(name, pattern):
            raise damaged_base_error(index, ValueError(f"it lists {name!r:.100}, and shards are called {pattern}"))
    return sorted({index.with_name(str(name)) for name in names})


def weights_index(folder: Path) -> Path | None:
    """Return the file that lists the shards of the weights in `folder`; None if they are in one file."""
    # A copy from the hub can also have the index of the other kind, without its files.
    kind = next((path.suffix for path in weight_files(folder)), None)
    return next(folder.glob(f"*{kind}.index.json"), None)


def weights_of(path: Path) -> dict[str, Any]:
    """Return the weights in a file by name, as tensors without numbers: only shapes and types are read.

    Raises DamagedFile if the file is cut short, or holds something other than weights. No code in it runs.
    """
    from transformers.modeling_utils import load_state_dict

    try:
        weights: dict[str, Any] = load_state_dict(path, map_location="meta", weights_only=True)
        if not all(isinstance(name, str) and str(weight.layout) == "torch.strided" for name, weight in weights.items()):
            raise UnpicklingError
    except (UnpicklingError, AttributeError):
        reason = "it holds something other than weights, which could be code, and nothing of it was run"
        raise damaged_base_error(path, ValueError(reason)) from None
    except Exception as error:  # Libraries raise many kinds of errors on damaged files.
        raise damaged_base_error(path, error) from None
    return weights


def require_plain_model(folder: Path) -> None:
    """Raise ConfigError if the model in `folder` names code that transformers could run, or has an adapter."""
    for path in (*folder.glob(SETTINGS), *folder.glob("custom_generate")):
        if key := (path.is_dir() and "generate.py") or _key_of_code(json_object(path)):
            raise ConfigError(
                f"{path} names Python code of the model's own ({key}), which is never run: set train.base_model to a "
                "model without such code, or delete the entry if transformers itself has this architecture."
            )
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"{folder} holds an adapter (adapter_config.json), which would be read as part of the base model: set "
            "train.base_model to a folder with the base model alone."
        )


def _key_of_code(content: Any) -> str:
    """Return the first key of a JSON value, at any depth, that names code; empty if there is none."""
    if isinstance(content, list):
        return next(filter(None, map(_key_of_code, content)), "")
    if not isinstance(content, dict):
        return ""
    for key, value in content.items():
        # A slash is in the name of a kernel on the hub.
        if (key == "auto_map" and value) or (key.endswith("attn_implementation") and "/" in str(value)):
            return str(key)
    return _key_of_code(list(content.values()))


def require_sound_base(folder: Path) -> None:
    """Raise DamagedFile if a file of the base model in `folder` is truncated, unreadable or missing."""
    for path in (path for pattern in (SETTINGS, "tokenizer*.json") for path in folder.glob(pattern)):
        json_object(path)
    if index := weights_index(folder):
        for part in shards(index):
            if not part.is_file():
                raise damaged_base_error(part, FileNotFoundError(f"it is missing, but {index.name} lists it"))
    for path in weight_files(folder):
        weights_of(path)


def damaged_base_error(path: Path, error: Exception) -> DamagedFile:
    """Return the error for a file or folder of a base model that cannot be read."""
    return DamagedFile(
        f"The base model cannot be read: {path} is damaged ({first_line(error)}). Put the model's files there again; "
        "`embedded` and models from the hub are restored automatically when their folder is deleted."
    )


@contextmanager
def report_damaged_base(folder: Path) -> Iterator[None]:
    """Translate a library's errors to DamagedFile, in a block that reads the base model in `folder`."""
    try:
        yield
    except (RetroformerError, MemoryError):
        raise
    except ImportError as error:  # As of a package for a format of quantized weights.
        raise MissingInput(f"The base model at {folder} needs a package: {first_line(error)}") from None
    except RuntimeError as error:
        if not isinstance(error, NotImplementedError) and "mismatch" not in str(error):  # As a GPU out of memory.
            raise
        raise damaged_base_error(folder, error) from None
    except Exception as error:  # Libraries raise many kinds of errors; `tokenizers` raises plain Exception.
        raise damaged_base_error(folder, error) from None


def json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises DamagedFile."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged_base_error(path, error) from None
    if not isinstance(content, dict):
        raise damaged_base_error(path, ValueError("it is no JSON object"))
    return content
