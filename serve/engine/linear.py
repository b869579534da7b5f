"""Linear layers of the base model with a LoRA adapter per token, and the files of LoRA adapters.

Shapes: T tokens of all rows packed in one batch, K inputs, N outputs, R rank.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from retroformer.models.adapter_weights import SCORE_HEAD, lora_config
from retroformer.run.provenance import ADAPTER_WEIGHTS

WEIGHT = re.compile(r"base_model\.model\.(?P<path>.+)\.lora_(?P<factor>[AB])\.weight")

PACKED_FOR_TOKENS = 16
"""Tokens per pass that the weight layout is optimized for; 64 run as well as 16, and more only a little worse."""


@dataclass
class Spans:
    """Adapters of the tokens in the current pass, shared by all layers of a model."""

    current: tuple[tuple[str, slice], ...] = ()
    """Tokens of one adapter are contiguous, so that a layer need not copy them."""


class AdaptedLinear(torch.nn.Module):
    """y = W x + b + B A x, with A and B of each token's adapter; A is already scaled.

    Adapters may be added to and removed from `adapters` between passes.
    """

    def __init__(self, base: torch.nn.Module, spans: Spans) -> None:
        super().__init__()
        self.base, self._spans = base, spans
        self.in_features, self.out_features = base.in_features, base.out_features
        self.adapters: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """Pairs of A (K, R) and B (R, N) by name."""

    def forward(self, inputs_1TK: torch.Tensor) -> torch.Tensor:
        outputs_1TN: torch.Tensor = self.base(inputs_1TK)
        for name, span in self._spans.current:
            if name in self.adapters:
                down_KR, up_RN = self.adapters[name]
                outputs_1TN[0, span].addmm_(inputs_1TK[0, span] @ down_KR, up_RN)
        return outputs_1TN


def add_adapter(model: Any, name: str, factors: Mapping[str, tuple[torch.Tensor, torch.Tensor]], spans: Spans) -> None:
    """Add an adapter, given as A (K, R) and B (R, N) by layer path, to `model`. Not during a pass.

    Raises ValueError, and changes nothing, if the model has no such linear layers before the last.
    """
    layers = dict(model.named_modules())
    for path, (down_KR, up_RN) in factors.items():
        layer = layers.get(path)
        linear: Any = layer.base if isinstance(layer, AdaptedLinear) else layer
        if not isinstance(linear, torch.nn.Linear | PackedLinear) or layer is model.get_output_embeddings():
            raise ValueError(f"only plain LoRA of linear layers before the last can be served, and {path} is none")
        if (linear.in_features, linear.out_features) != (len(down_KR), up_RN.shape[1]):
            raise ValueError(f"{path} has other numbers of inputs and outputs")
    for path, pair in factors.items():
        if not isinstance(layers[path], AdaptedLinear):
            layers[path] = AdaptedLinear(layers[path], spans)
            model.set_submodule(path, layers[path])
        layers[path].adapters[name] = pair


def remove_adapter(model: torch.nn.Module, name: str) -> None:
    """Remove the adapter `name` from all layers. Not during a pass."""
    for layer in model.modules():
        if isinstance(layer, AdaptedLinear):
            layer.adapters.pop(name, None)


class PackedLinear(torch.nn.Module):
    """y = W x + b on a CPU by oneDNN, with W packed once in the layout of its kernels.

    torch's own linear layer calls MKL in float32, which uses only half of an AVX-512 processor that is not Intel's, and
    in bfloat16 it brings the weight into that layout in every pass.
    """

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._bias = None if linear.bias is None else linear.bias.detach()
        # torch's compiler replaces the linear layers of frozen models by the same operators.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACKED_FOR_TOKENS)

    def forward(self, inputs_1TK: torch.Tensor) -> torch.Tensor:
        outputs_1TN: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs_1TK, self._weight, self._bias, "none", [], ""
        )
        return outputs_1TN


def pack(model: torch.nn.Module) -> None:
    """Replace linear layers of `model` by `PackedLinear` with the same weights where it applies: on a CPU."""
    types = [torch.float32] if torch.backends.mkldnn.is_available() else []  # type: ignore[no-untyped-call]
    types += [torch.bfloat16] if types and torch.ops.mkldnn._is_mkldnn_bf16_supported() else []
    for path, layer in list(model.named_modules()):
        if type(layer) is torch.nn.Linear and layer.weight.device.type == "cpu" and layer.weight.dtype in types:
            model.set_submodule(path, PackedLinear(layer))


class LoraWeights(NamedTuple):
    """Weights of an adapter."""

    factors: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    """A (K, R), already scaled, and B (R, N) by layer path."""
    head: torch.Tensor | None
    """Score head of a reward model, (H); None for an adapter that writes."""


def read_lora(folder: Path, *, scores: bool = False) -> LoraWeights:
    """Read an adapter as saved by peft in `folder`; with `scores`, it is a reward model's.

    Raises ValueError or SafetensorError if the adapter is not plain LoRA, lacks its score head, or is damaged.
    """
    from safetensors.torch import load_file

    config = lora_config(folder)
    rank, scaling = config.r, config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
    head, factors = None, dict[str, dict[str, torch.Tensor]]()
    for name, weight in load_file(folder / ADAPTER_WEIGHTS).items():
        if scores and name.endswith(SCORE_HEAD):
            head = weight[0]
            continue
        match = WEIGHT.fullmatch(name)
        if match is None or weight.ndim != 2:
            raise ValueError(f"{name} is not a factor of it, and only plain LoRA can be served")
        if weight.shape[match["factor"] == "B"] != rank:
            raise ValueError(f"{name} does not have the rank {rank} of the configuration")
        factors.setdefault(match["path"], {})[match["factor"]] = weight.T
    if scores and head is None:
        raise ValueError("it has no score head, so it is not a reward model")
    try:
        pairs = {path: ((scaling * pair["A"]).contiguous(), pair["B"].contiguous()) for path, pair in factors.items()}
    except KeyError as absent:
        raise ValueError(f"a layer lacks its factor {absent}") from None
    return LoraWeights(pairs, head)
