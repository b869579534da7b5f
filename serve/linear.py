"""Linear layers of the base model with the LoRA adapters of the tokens that pass through them.

Shapes: T tokens of all rows in one line, K inputs, N outputs, R rank.
"""

from collections.abc import Mapping
from typing import Any

import torch


class Spans:
    """Which adapters the tokens of the running pass have. One for all layers of a model.

    Tokens of one adapter are neighbours, so that a layer needs no copy of them.
    """

    def __init__(self) -> None:
        self.now: tuple[tuple[str, slice], ...] = ()


class AdaptedLinear(torch.nn.Module):
    """y = W x + b + B A x, the last term with the adapter of each token; `A` comes scaled."""

    def __init__(
        self, base: torch.nn.Module, adapters: Mapping[str, tuple[torch.Tensor, torch.Tensor]], spans: Spans
    ) -> None:
        """`adapters` are pairs of A (K, R) and B (R, N) by name."""
        super().__init__()
        self.base = base
        self._adapters = adapters
        self._spans = spans

    def forward(self, inputs_1TK: torch.Tensor) -> torch.Tensor:
        outputs_1TN: torch.Tensor = self.base(inputs_1TK)
        for name, span in self._spans.now:
            if name in self._adapters:
                down_KR, up_RN = self._adapters[name]
                outputs_1TN[0, span].addmm_(inputs_1TK[0, span] @ down_KR, up_RN)
        return outputs_1TN


def refuse_what_is_not_plain_lora(peft_model: Any) -> None:
    """Look through what peft has made of a model.

    Raises:
        ValueError: an adapter changes more than the products of linear layers before the last one.
    """
    from peft.tuners.lora import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    head = peft_model.get_output_embeddings()
    for name, layer in peft_model.named_modules():
        if isinstance(layer, (BaseTunerLayer, AuxiliaryTrainingWrapper)) and (
            not isinstance(layer, Linear) or layer.lora_variant or any(layer.lora_bias.values()) or layer is head
        ):
            raise ValueError(f"{name} is changed, and only plain LoRA of linear layers before the last can be served")


def adopt_adapters(peft_model: Any, spans: Spans) -> Any:
    """The base model inside of `peft_model`, with our layers where peft's were."""
    from peft.tuners.lora import Linear

    model = peft_model.get_base_model()
    for path, layer in list(model.named_modules()):
        if isinstance(layer, Linear):
            model.set_submodule(path, AdaptedLinear(layer.get_base_layer(), _factors(layer), spans))
    return model


def _factors(layer: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Of each adapter of a layer of peft's, A scaled and B, in the type of the base's weights."""
    like = layer.get_base_layer().weight
    downs = {name: layer.lora_A[name].weight.detach().T * scaling for name, scaling in layer.scaling.items()}
    ups = {name: layer.lora_B[name].weight.detach().T for name in downs}
    return {name: (downs[name].to(like).contiguous(), ups[name].to(like).contiguous()) for name in downs}
