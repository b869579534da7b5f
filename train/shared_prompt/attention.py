"""Attention over packed rows in two parts.

The first tokens of every row belong to prompts, where attention is plainly causal and needs no mask. The mask has rows
for the other tokens only.
"""

from typing import Any

import torch
from torch import Tensor

SPLIT = "shared_prompt"
"""Name under which transformers knows this attention."""


def register_split_attention() -> None:
    """Make the attention selectable by its name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(SPLIT, split_attention)
    AttentionMaskInterface.register(SPLIT, sdpa_mask)


def split_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Return the attention's output, (B, L, heads, head size), like transformers' fused attention.

    That one is all of it where the mask has a row for each query, or there is no mask.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    first = 0 if attention_mask is None else query.shape[2] - attention_mask.shape[2]
    if not first:
        whole: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return whole
    start, _ = sdpa_attention_forward(
        module, query[:, :, :first], key[:, :, :first], value[:, :, :first], None, **options
    )
    rest, _ = sdpa_attention_forward(module, query[:, :, first:], key, value, attention_mask, **options)
    return torch.cat([start, rest], dim=1), None
