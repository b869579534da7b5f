"""The shape of a model's keys and values, and how much memory they may take."""

from dataclasses import dataclass

import torch

KEY_VALUE_BYTES_ON_CPU = 1024**3
PREFIX_BYTES_ON_CPU = 512 * 1024**2


@dataclass(frozen=True)
class Geometry:
    """What one token leaves behind in every layer."""

    layers: int
    heads: int
    """Of keys and values; the query heads may be more."""
    head_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.head_size * self.dtype.itemsize


@dataclass(frozen=True)
class TokenBudget:
    """How many tokens' keys and values are kept: of running requests, and of prefixes for later ones."""

    running: int
    prefixes: int


def token_budget(geometry: Geometry) -> TokenBudget:
    """On a CPU a fixed amount of memory; on a GPU, shares of what the loaded model has left free."""
    running_bytes, prefix_bytes = KEY_VALUE_BYTES_ON_CPU, PREFIX_BYTES_ON_CPU
    if geometry.device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(geometry.device)
        running_bytes, prefix_bytes = free_bytes // 2, free_bytes // 5
    return TokenBudget(running_bytes // geometry.bytes_per_token, prefix_bytes // geometry.bytes_per_token)
