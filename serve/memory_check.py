"""Refuses a base model that would not fit into the memory of a CPU, before it is loaded."""

from pathlib import Path

import torch

from retroformer.errors import ConfigError
from retroformer.files.available_memory import available_memory
from retroformer.models.base_files import shards, weight_files, weights_index, weights_of
from retroformer.models.precision import Dtype, Quantization

GIB = 1024**3
_NUMBER_BYTES = {"float32": 4, "bfloat16": 2}
_NF4_BYTES = 0.52
"""Bytes of a number in 4 bits, with its share of the constants."""


def require_memory(folder: Path, dtype: Dtype, quantization: Quantization = "none") -> None:
    """Raise ConfigError if the weights of the base model in `folder` do not fit into the memory of a CPU."""
    available = available_memory()
    if torch.cuda.is_available() or available is None:
        return
    needed = weight_bytes(folder, dtype, quantization)
    if needed > available:
        smaller = "set serve.dtype=bfloat16, or " if dtype == "float32" else ""
        raise ConfigError(
            f"The base model in {str(folder)!r} takes {needed / GIB:.1f} GiB in {dtype}, and {available / GIB:.1f} GiB "
            f"are available on this machine: {smaller}choose a smaller train.base_model, or serve it on a GPU."
        )


def weight_bytes(folder: Path, dtype: Dtype, quantization: Quantization = "none") -> int:
    """Return about the size of the weights in `folder` once they are loaded in `dtype`, or in 4 bits."""
    number_bytes = _NF4_BYTES if quantization == "nf4" else _NUMBER_BYTES[dtype]
    index, sizes = weights_index(folder), dict[str, float]()
    for path in shards(index) if index else weight_files(folder):
        for name, weight in weights_of(path).items():
            # Numbers of one byte, as of 4-bit weights, stay as they are.
            sizes[name] = weight.numel() * (number_bytes if weight.element_size() > 1 else 1)
    # Weights of linear layers are packed for the CPU: a head that shares the embeddings becomes a copy of them.
    if "lm_head.weight" not in sizes:
        sizes["lm_head.weight"] = sum(size for name, size in sizes.items() if name.endswith("embed_tokens.weight"))
    return int(sum(sizes.values()))
