"""The shape of a model, counted on the meta device: no weights are read or allocated."""

from typing import Any, NamedTuple

import torch
from torch import nn

from retroformer.config.sections.train import ATTENTION_LAYERS, Lora
from retroformer.models.loading import untrained_model


class Matrix(NamedTuple):
    """A linear layer."""

    name: str
    """Last part of the path, such as `q_proj`."""
    inputs: int
    outputs: int

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs


class Shape(NamedTuple):
    """The sizes of a model that its memory depends on. Widths are counts of numbers, not bytes."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    matrices: tuple[Matrix, ...]
    """Linear layers of all blocks, which may be quantised and may get adapters."""
    head_parameters: int
    """Parameters of the language head; 0 if it shares the embeddings' weights."""
    other_parameters: int
    """Parameters of embeddings and norms."""

    @property
    def matrix_parameters(self) -> int:
        return sum(matrix.parameters for matrix in self.matrices)

    @property
    def parameters(self) -> int:
        return self.matrix_parameters + self.head_parameters + self.other_parameters

    def adapted_layers(self, lora: Lora) -> int:
        """Return the number of layers that get an adapter."""
        return self.layers if lora.layers == "all" else self.layers - self.layers // 2

    def targets(self, lora: Lora) -> list[Matrix]:
        """Return the matrices that get an adapter."""
        everywhere = lora.targets == "all-linear"
        below = len(self.matrices) // self.layers * (self.layers - self.adapted_layers(lora))
        return [matrix for matrix in self.matrices[below:] if everywhere or matrix.name in ATTENTION_LAYERS]

    def adapter_parameters(self, lora: Lora) -> int:
        """Count the parameters of A (rank x inputs) and B (outputs x rank) on every target."""
        return sum(lora.rank * (matrix.inputs + matrix.outputs) for matrix in self.targets(lora))


def skeleton(config: Any, *, scores: bool = False) -> Any:
    """Build the model of a transformers config without weights, with a language head or, with `scores`, one score."""
    with torch.device("meta"):
        return untrained_model(config, scores=scores)


def shape_of(config: Any) -> Shape:
    """Return the shape of the model that a transformers config describes."""
    model, text = skeleton(config), config.get_text_config()
    head = model.get_output_embeddings()
    matrices = tuple(
        Matrix(name.rpartition(".")[2], module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    head_parameters = 0 if head.weight is model.get_input_embeddings().weight else head.weight.numel()
    return Shape(
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        heads=text.num_attention_heads,
        key_value_heads=text.num_key_value_heads,
        head_size=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        vocabulary=text.vocab_size,
        matrices=matrices,
        head_parameters=head_parameters,
        other_parameters=total - head_parameters - sum(matrix.parameters for matrix in matrices),
    )
