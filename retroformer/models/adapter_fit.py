"""Compares the weights of an adapter with the layers of a base model, before anything is loaded into it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retroformer.errors import ConfigError
from retroformer.run.provenance import ADAPTER_FILES

_CONFIG, _WEIGHTS = ADAPTER_FILES
_SCORE = "base_model.model.score.weight"
"""Name of the reward model's head, which peft saves with its adapter."""
_FOR_SOME_LAYERS = ("exclude_modules", "layers_pattern", "rank_pattern", "target_parameters")
"""Settings of peft with which an adapter has other weights on each layer. No stage uses them."""


def require_fit(base: Any, folder: Path, *, scores: bool = False) -> None:
    """Compare the adapter in `folder`, which has a score head if `scores`, with the layers of `base`.

    Raises:
        ConfigError: the adapter was made for a base model of another shape.
        OSError, ValueError, KeyError, SafetensorError: the adapter cannot be read.
    """
    adapter = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    if any(adapter.get(name) for name in _FOR_SOME_LAYERS):
        return
    expected = {
        f"base_model.model.{path}.lora_{factor}.weight": shape
        for path, module in base.named_modules()
        if _is_target(path, adapter) and hasattr(module, "in_features")
        for factor, shape in (("A", (adapter["r"], module.in_features)), ("B", (module.out_features, adapter["r"])))
    }
    if scores:
        expected[_SCORE] = (1, base.config.get_text_config().hidden_size)
    # Serving refuses other weights, such as those of DoRA, with their own reason.
    shapes = {
        name: shape
        for name, shape in _shapes(folder / _WEIGHTS).items()
        if name == _SCORE or name.endswith((".lora_A.weight", ".lora_B.weight"))
    }
    for name in sorted(expected.keys() | shapes.keys()):
        if shapes.get(name) != expected.get(name):
            raise ConfigError(
                f"The adapter in {folder} does not fit the base model {getattr(base, 'name_or_path', '')!r}: "
                f"{name} has {_in_words(shapes.get(name))} there and {_in_words(expected.get(name))} on this base. Set "
                f"train.base_model to the model that it was trained on{_recorded(adapter)}, or delete the folder and "
                "train it again."
            )


def _recorded(adapter: Mapping[str, Any]) -> str:
    """Return the name of the base in the adapter's config, for a message; "" if there is none."""
    name = adapter.get("base_model_name_or_path")
    return f", {name!r}" if name else ""


def layer_of(path: str) -> int | None:
    """Return the number of the transformer layer that a module is in, as peft counts; None outside of them."""
    match = re.match(r".*?\.[^.]*\.(\d+)\.", path)
    return int(match[1]) if match else None


def _is_target(path: str, adapter: Mapping[str, Any]) -> bool:
    """Return True if the adapter has weights on this module. peft may list full paths; all layers use the same
    names.
    """
    targets, layers = adapter["target_modules"], adapter.get("layers_to_transform")
    if isinstance(targets, str):
        return re.fullmatch(targets, path) is not None
    if layers is not None and layer_of(path) not in layers:
        return False
    return path.rpartition(".")[2] in {target.rpartition(".")[2] for target in targets}


def _shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as weights:
        return {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118


def _in_words(shape: tuple[int, ...] | None) -> str:
    return "no weights" if shape is None else f"shape {shape}"
