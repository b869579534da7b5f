"""The shape of a model, counted on the meta device: no weights are read, and none are made."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from retroformer.embedded_model import base_model_folder, model_config
from retroformer.errors import MissingInput

LLAMA_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
LLAMA_13B = LLAMA_7B | {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
}
LLAMA_3_8B = LLAMA_7B | {"intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 128256}


def _linear(factor: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "linear", "factor": factor, "rope_theta": 10000.0}}


CARDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "lmsys/longchat-7b-16k": LLAMA_7B | {"max_position_embeddings": 16384} | _linear(8.0),
        "lmsys/longchat-13b-16k": LLAMA_13B | {"max_position_embeddings": 16384} | _linear(8.0),
        "lmsys/vicuna-7b-v1.5-16k": LLAMA_7B | {"max_position_embeddings": 16384} | _linear(4.0),
        "meta-llama/Llama-2-7b-chat-hf": LLAMA_7B | {"max_position_embeddings": 4096},
        "meta-llama/Llama-3.1-8B-Instruct": LLAMA_3_8B | {"max_position_embeddings": 131072},
    }
)
"""What is known of some models of the Llama architecture, for machines that cannot read their config.json."""


class FoundConfig(NamedTuple):
    """A transformers configuration, and where it comes from, in words."""

    config: Any
    source: str


@dataclass(frozen=True)
class Matrix:
    """A linear layer."""

    name: str
    """The last part of its name, such as `q_proj`."""
    inputs: int
    outputs: int

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs


@dataclass(frozen=True)
class Architecture:
    """What memory depends on. Widths are in numbers, not bytes."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    key_value_heads: int
    head_size: int
    vocabulary: int
    matrices: tuple[Matrix, ...]
    """Of all layers; those that are quantised, and that adapters may be put on."""
    head_parameters: int
    """Of the language head; 0 where it shares the embeddings' weights."""
    other_parameters: int
    """Embeddings and norms."""

    @property
    def parameters(self) -> int:
        """Of the language model."""
        return sum(matrix.parameters for matrix in self.matrices) + self.head_parameters + self.other_parameters


def read_config(name: str) -> FoundConfig:
    """The configuration of the base model that `train.base_model` names; no weights are fetched for it.

    Raises:
        MissingInput: there is neither a folder, nor an answer of the hub, nor a card of this name.
    """
    if name == "embedded" or Path(name).is_dir():
        return FoundConfig(model_config(base_model_folder(name)), "its config.json")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        path = Path(hf_hub_download(name, "config.json"))
        return FoundConfig(model_config(path.parent), "the hub's config.json")
    except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError):
        if name not in CARDS:
            raise MissingInput(
                f"No configuration of {name!r}: it is no folder, the hub did not give it, and it is not among the "
                f"known shapes ({', '.join(CARDS)}). Set train.base_model to one of them, or go online."
            ) from None
    from transformers import LlamaConfig

    return FoundConfig(LlamaConfig(**CARDS[name]), "its known shape, since its config.json could not be read")


def is_here(name: str) -> bool:
    """Whether the base model is on this machine, so that reading it downloads nothing."""
    if name == "embedded" or Path(name).is_dir():
        return True
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return any(Path(snapshot_download(name, local_files_only=True)).glob("*.safetensors"))
    except (HFValidationError, LocalEntryNotFoundError):
        return False


def skeleton(config: Any, *, scores: bool = False) -> Any:
    """The model of a configuration without weights, with a language head or one score."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    config.num_labels = 1
    kind: Any = AutoModelForSequenceClassification if scores else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config)


def architecture(config: Any) -> Architecture:
    """Count the model of a configuration on the meta device."""
    from torch import nn

    model, text = skeleton(config), config.get_text_config()
    head = model.get_output_embeddings()
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    matrices = tuple(
        Matrix(name.rpartition(".")[2], module.in_features, module.out_features)
        for name, module in linear.items()
        if module is not head
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    tied = head.weight is model.get_input_embeddings().weight
    head_parameters = 0 if tied else head.weight.numel()
    return Architecture(
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
