"""Reads an adapter without the model that it belongs to, so that it can join one that is running.

Shapes: K inputs and N outputs of a layer, R rank.
"""

import math
import re
from pathlib import Path
from typing import Any

import torch

WEIGHT = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<factor>[AB])\.weight")
FOR_SOME_LAYERS = ("rank_pattern", "alpha_pattern", "use_dora", "fan_in_fan_out")
"""Settings of peft's that change what the two factors mean."""


def read_lora(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A (K, R), scaled, and B (R, N) by the paths of their layers, from what peft saved in `folder`.

    Raises:
        ValueError, SafetensorError: there is no plain LoRA, or it is damaged, or a weight is NaN or infinite.
    """
    from safetensors.torch import load_file

    rank, scaling = _rank_and_scaling(folder)
    factors: dict[str, dict[str, torch.Tensor]] = {}
    for name, weight in load_file(folder / "adapter_model.safetensors").items():
        known = WEIGHT.fullmatch(name)
        if known is None or weight.ndim != 2:
            raise ValueError(f"{name} is no factor of a plain LoRA")
        if weight.shape[known["factor"] == "B"] != rank:
            raise ValueError(f"{name} is not of the rank {rank} that the configuration says")
        require_finite(name, weight)
        factors.setdefault(known["path"], {})[known["factor"]] = weight.T
    try:
        return {path: ((scaling * pair["A"]).contiguous(), pair["B"].contiguous()) for path, pair in factors.items()}
    except KeyError as absent:
        raise ValueError(f"a layer lacks its factor {absent}") from None


def require_finite_weights(folder: Path) -> None:
    """Look through the weights of an adapter of any kind in `folder`.

    Raises:
        ValueError, SafetensorError: one of them is NaN or infinite, or they are damaged.
    """
    from safetensors import safe_open

    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  It is no mapping.
            require_finite(name, file.get_tensor(name))


def require_finite(name: str, *weights: torch.Tensor) -> None:
    """Raise ValueError where one of `weights` holds NaN or an infinity; `name` is for its message."""
    if not all(weight.isfinite().all() for weight in weights):
        raise ValueError(f"{name} has weights that are NaN or infinite")


def _rank_and_scaling(folder: Path) -> tuple[int, float]:
    from peft import PeftConfig

    try:
        config: Any = PeftConfig.from_pretrained(str(folder))
        if config.peft_type != "LORA" or any(getattr(config, name) for name in FOR_SOME_LAYERS):
            raise ValueError("only plain LoRA can be handed over")
        return config.r, config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    # Whatever stands in the file in place of settings, peft goes on with.
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"its configuration cannot be read ({type(error).__name__} {error})") from error
