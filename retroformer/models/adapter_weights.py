"""Weights of an adapter as peft saves them: compared with the layers of a base model, or read for its score head."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retroformer.errors import ConfigError
from retroformer.files.bounded import MIB, read_text
from retroformer.run.provenance import ADAPTER_FILES

_CONFIG, _WEIGHTS = ADAPTER_FILES
SCORE_HEAD = "score.weight"
"""End of the name of the score head's weight, which peft saves with a reward model's adapter."""
_SCORE = f"base_model.model.{SCORE_HEAD}"
_FREE = (
    *("task_type", "peft_type", "peft_version", "auto_mapping", "base_model_name_or_path", "revision"),
    *("inference_mode", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "layers_to_transform"),
)
"""Settings of peft that are read, or change nothing. All others have the value that they have in a plain LoRA."""
_PLAIN = {"init_lora_weights": (True, False, "gaussian"), "modules_to_save": (None, ["score"], ["classifier", "score"])}
"""Further values of settings in a plain LoRA; a reward model's adapter also has its score head."""


def lora_config(folder: Path) -> Any:
    """Read peft's config of the adapter in `folder`. Raises OSError, or ValueError if it is no plain LoRA."""
    from peft import LoraConfig

    content = json.loads(read_text(folder / _CONFIG, MIB))
    if not isinstance(content, dict) or content.get("peft_type") != "LORA":
        raise ValueError("its configuration cannot be read: no LoRA configuration")
    for name, kind in (("r", int), ("lora_alpha", int | float), ("target_modules", list | str)):
        if not isinstance(content.get(name), kind) or content[name] is True or not content[name]:
            raise ValueError(f"its configuration cannot be read: no {name}")
    defaults = LoraConfig().to_dict()
    for name, value in content.items():
        default = defaults.get(name)
        is_plain = value == default or not (value or default) or _as_set(value) in map(_as_set, _PLAIN.get(name, ()))
        if not (name in _FREE or is_plain):
            raise ValueError(f"its {name} is {value!r:.100}, and only plain LoRA can be trained and served")
    readable = {name: content[name] for name in (*_FREE, *_PLAIN) if name in content and name != "peft_type"}
    return LoraConfig(**readable)


def _as_set(value: Any) -> Any:
    return frozenset(map(str, value)) if isinstance(value, list) else value


def require_fit(base: Any, folder: Path, *, scores: bool = False) -> None:
    """Compare the adapter in `folder`, which has a score head if `scores`, with the layers of `base`.

    Raises:
        ConfigError: the adapter was made for a base model of another shape.
        OSError, ValueError, KeyError, SafetensorError: the adapter cannot be read.
    """
    adapter = lora_config(folder)
    expected = {
        f"base_model.model.{path}.lora_{factor}.weight": shape
        for path, module in base.named_modules()
        if _is_target(path, adapter) and hasattr(module, "in_features")
        for factor, shape in (("A", (adapter.r, module.in_features)), ("B", (module.out_features, adapter.r)))
    }
    if scores:
        expected[_SCORE] = (1, base.config.get_text_config().hidden_size)
    # Serving refuses other weights, such as those of DoRA, with their own reason.
    shapes = {
        name: shape
        for name, shape in _shapes(folder / _WEIGHTS).items()
        if name == _SCORE or name.endswith((".lora_A.weight", ".lora_B.weight"))
    }
    trained_on = f", {recorded!r}" if (recorded := adapter.base_model_name_or_path) else ""
    for name in sorted(expected.keys() | shapes.keys()):
        if shapes.get(name) != expected.get(name):
            raise ConfigError(
                f"The adapter in {folder} does not fit the base model {getattr(base, 'name_or_path', '')!r}: "
                f"{name} has {_in_words(shapes.get(name))} there and {_in_words(expected.get(name))} on this base. Set "
                f"train.base_model to the model that it was trained on{trained_on}, or delete the folder and "
                "train it again."
            )


def layer_of(path: str) -> int | None:
    """Return the number of the transformer layer that a module is in, as peft counts; None outside of them."""
    match = re.match(r".*?\.[^.]*\.(\d+)\.", path)
    return int(match[1]) if match else None


def _is_target(path: str, adapter: Any) -> bool:
    """Return True if the adapter has weights on this module, which peft may list by its full path."""
    targets, layers = adapter.target_modules, adapter.layers_to_transform
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


def add_reward_adapter(peft_model: Any, folder: Path, name: str) -> Any:
    """Put the adapter of a reward model on the language model `peft_model`; return its score head, a tensor (1, H).

    The head weighs the last hidden state. Raises ValueError if there is none, or the model lacks a layer.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    config, weights = lora_config(folder), load_file(folder / _WEIGHTS)
    config.task_type, config.modules_to_save, config.inference_mode = "CAUSAL_LM", None, True
    heads = [key for key in weights if key.endswith(SCORE_HEAD)]
    if len(heads) != 1:
        raise ValueError("it has no score head, so it is not a reward model")
    head = weights.pop(heads[0])
    peft_model.add_adapter(name, config)
    if unknown := set_peft_model_state_dict(peft_model, weights, adapter_name=name).unexpected_keys:
        raise ValueError(f"the model has no layer for {unknown[0]}")
    return head
