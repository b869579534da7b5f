"""Refuses a base model that would not fit into the memory of a CPU, before it is loaded."""

from collections.abc import Iterator
from pathlib import Path

import torch

from retroformer.errors import ConfigError
from retroformer.files.available_memory import available_memory
from retroformer.models.base_dtype import Dtype
from retroformer.models.base_files import shards, weight_files, weights_index, weights_of
from retroformer.models.quantization import Quantization

GIB = 1024**3
_HEAD = "lm_head.weight"
_EMBEDDINGS = "embed_tokens.weight"
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
    """Return the size of the weights in `folder` once they are loaded in `dtype`, and perhaps in 4 bits."""
    sizes = dict(_sizes(folder, 4 if dtype == "float32" else 2))
    if quantization == "nf4":
        share = _NF4_BYTES / (4 if dtype == "float32" else 2)
        sizes = {name: size if _stays(name) else int(size * share) for name, size in sizes.items()}
    # Weights of linear layers are packed for the CPU: a head that shares the embeddings becomes a copy of them.
    tied = _HEAD not in sizes
    return sum(sizes.values()) + tied * sum(size for name, size in sizes.items() if name.endswith(_EMBEDDINGS))


def _stays(name: str) -> bool:
    """Return True if a weight is not in 4 bits even if the linear layers are."""
    return name == _HEAD or name.endswith((_EMBEDDINGS, "norm.weight", ".bias"))


def _sizes(folder: Path, bytes_each: int) -> Iterator[tuple[str, int]]:
    index = weights_index(folder)
    for path in shards(index) if index else weight_files(folder):
        for name, weight in weights_of(path).items():
            # Numbers of one byte, as of 4-bit weights, stay as they are; others are converted to the type of serving.
            yield name, weight.numel() * (bytes_each if weight.element_size() > 1 else 1)
