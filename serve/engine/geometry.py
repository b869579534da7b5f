"""Shape of a model's keys and values, and the memory that they may take."""

from dataclasses import dataclass

import torch

KEY_VALUE_BYTES_ON_CPU = 1024**3
PREFIX_BYTES_ON_CPU = 512 * 1024**2


@dataclass(frozen=True)
class Geometry:
    """Shape of the keys and values that one token adds to every layer."""

    layers: int
    heads: int
    """Number of key-value heads; there may be more query heads."""
    head_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True)
class TokenBudget:
    """Number of tokens whose keys and values are kept, for running requests and for prefixes of later requests."""

    running: int
    prefixes: int


def token_budget(geometry: Geometry) -> TokenBudget:
    """Return the budget: a fixed amount of memory on a CPU; on a GPU, shares of what the loaded model leaves free."""
    running_bytes, prefix_bytes = KEY_VALUE_BYTES_ON_CPU, PREFIX_BYTES_ON_CPU
    if geometry.device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(geometry.device)
        running_bytes, prefix_bytes = free_bytes // 2, free_bytes // 5
    return TokenBudget(running_bytes // geometry.bytes_per_token, prefix_bytes // geometry.bytes_per_token)
