"""Reading of a LoRA adapter without its model, so that it can be added to a running model.

Shapes: K inputs and N outputs of a layer, R rank.
"""

import math
import re
from pathlib import Path
from typing import Any

import torch

from retroformer.models.reward_adapter import SCORE_HEAD
from retroformer.provenance import ADAPTER_WEIGHTS

WEIGHT = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<factor>[AB])\.weight")
FOR_SOME_LAYERS = ("rank_pattern", "alpha_pattern", "use_dora", "fan_in_fan_out")
"""Settings of peft that change the meaning of the two factors."""


def read_lora(folder: Path, *, scores: bool = False) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the scaled A (K, R) and B (R, N) by layer path, as saved by peft in `folder`.

    With `scores` it is a reward model's, whose score head is left out.

    Raises:
        ValueError, SafetensorError: the adapter is not plain LoRA, or is damaged, or has a NaN or infinite weight.
    """
    from safetensors.torch import load_file

    rank, scaling = _rank_and_scaling(folder)
    factors: dict[str, dict[str, torch.Tensor]] = {}
    for name, weight in load_file(folder / ADAPTER_WEIGHTS).items():
        if scores and name.endswith(SCORE_HEAD):
            continue
        match = WEIGHT.fullmatch(name)
        if match is None or weight.ndim != 2:
            raise ValueError(f"{name} is not a factor of it, and only plain LoRA can be served")
        if weight.shape[match["factor"] == "B"] != rank:
            raise ValueError(f"{name} does not have the rank {rank} of the configuration")
        require_finite(name, weight)
        factors.setdefault(match["path"], {})[match["factor"]] = weight.T
    try:
        return {path: ((scaling * pair["A"]).contiguous(), pair["B"].contiguous()) for path, pair in factors.items()}
    except KeyError as absent:
        raise ValueError(f"a layer lacks its factor {absent}") from None


def require_finite(name: str, *weights: torch.Tensor) -> None:
    """Raise ValueError if one of `weights` holds a NaN or an infinity; the message has `name`."""
    if not all(weight.isfinite().all() for weight in weights):
        raise ValueError(f"{name} has weights that are NaN or infinite")


def _rank_and_scaling(folder: Path) -> tuple[int, float]:
    from peft import PeftConfig

    try:
        config: Any = PeftConfig.from_pretrained(str(folder))
        if config.peft_type != "LORA" or any(getattr(config, name) for name in FOR_SOME_LAYERS):
            raise ValueError("only plain LoRA can be served")
        return config.r, config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    # peft does not validate the settings in the file, so wrong types surface only when they are used.
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"its configuration cannot be read ({type(error).__name__} {error})") from error
