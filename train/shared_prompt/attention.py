"""Attention over packed rows in two parts, or by flex attention.

The first tokens of every row belong to prompts, where attention is plainly causal and needs no mask: on a GPU it is
flash attention. The mask has rows for the other tokens only. Nothing is compiled. Flex attention is compiled, and skips
all that no token sees; a GPU needs it only where many responses share a prompt.

B: rows; Q: queries; K: keys; H: heads; G: heads of the keys, each for H / G heads of the queries; D: head size.
"""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from retroformer.errors import ConfigError

SPLIT, QUICK, FLEX = "shared_prompt", "shared_prompt_quick", "shared_prompt_flex"
"""Names under which transformers knows this attention: by fused attention throughout, by plain attention for short rows
on a CPU, and by flex attention. Plain attention rounds scores to bf16 before the softmax, so its error is half as large
again."""
SHORT = 512
"""Maximum number of keys for which plain attention is faster than fused attention, in bf16 on a CPU."""
STEP = 16
"""Maximum number of queries for which plain attention is faster on a CPU: responses to a prompt, in generation."""
MOST_COMPILATIONS = 16
"""Limit of flex attention's compilations in a process."""


def register_attention() -> None:
    """Make the attentions selectable by their names."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name, attention in ((SPLIT, split_attention), (QUICK, quick_attention), (FLEX, flex_attention)):
        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, sdpa_mask)


def split_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    quick: bool = False,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return the attention's output, (B, Q, H, D), computed by transformers' fused attention.

    It is computed in one part where the mask has a row for each query, or there is no mask, else in two. With `quick`,
    short parts are computed by plain attention, several times faster in bf16 on a CPU.
    """
    if attention_mask is not None and (first := query.shape[2] - attention_mask.shape[2]):
        of_prompts = query[:, :, :first], key[:, :, :first], value[:, :, :first]
        start, _ = split_attention(module, *of_prompts, None, quick=quick, **options)
        rest, _ = split_attention(module, query[:, :, first:], key, value, attention_mask, quick=quick, **options)
        return torch.cat([start, rest], dim=1), None
    if quick and _plain_is_faster(query, key, attention_mask) and not options.get("dropout"):
        scaling = options.get("scaling") or query.shape[-1] ** -0.5
        return _plain(query, key, value, attention_mask, scaling), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    output: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **options)[0]
    return output, None


quick_attention = partial(split_attention, quick=True)


def flex_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Return the attention's output, (B, Q, H, D), computed by flex attention where there is a block mask.

    Raises:
        ConfigError: the rows have more forms than torch compiles.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit
    from torch.nn.attention.flex_attention import BlockMask

    if not isinstance(attention_mask, BlockMask):
        return split_attention(module, query, key, value, attention_mask, **options)
    try:
        output_BHQD = _compiled_flex_attention()(
            query, key, value, block_mask=attention_mask, scale=options.get("scaling"), enable_gqa=True
        )
    except FailOnRecompileLimitHit:
        raise ConfigError(
            "Flex attention was compiled for more forms of rows than torch allows: set train.attention=split."
        ) from None
    return output_BHQD.transpose(1, 2).contiguous(), None


@cache
def _compiled_flex_attention() -> Any:
    """Return flex attention, compiled for any number and length of rows.

    At its limit of compilations torch would compute the scores of all pairs of tokens; with `fullgraph` it raises. Some
    are needed: for one row and for several, with and without gradients, and where two sizes happen to be equal.
    """
    from torch.nn.attention import flex_attention as library

    options: Any = {"fullgraph": True, "dynamic": True, "recompile_limit": MOST_COMPILATIONS}
    return torch.compile(library.flex_attention, **options)


def _plain_is_faster(query: Tensor, key: Tensor, mask: Tensor | None) -> bool:
    """Return True for a part that plain attention computes faster: of a short row in bf16, or of a step of generation.

    Fused attention copies the keys for each head of the queries. A mask of another dtype is one of transformers' own,
    of truth values.
    """
    if key.device.type != "cpu" or (mask is not None and mask.dtype != key.dtype):
        return False
    if mask is None and query.shape[2] != key.shape[2]:
        return False
    is_step = mask is not None and query.shape[2] <= STEP
    return is_step or (key.dtype == torch.bfloat16 and key.shape[2] <= SHORT)


def _plain(query_BHQD: Tensor, key_BGKD: Tensor, value_BGKD: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """Return attention computed by matrix products, (B, Q, H, D); causal without a mask."""
    B, H, Q, D = query_BHQD.shape
    G, K = key_BGKD.shape[1:3]
    if mask is None:
        later_QK = torch.ones(Q, K, dtype=torch.bool).triu(1)
        bias = torch.zeros(Q, K, dtype=key_BGKD.dtype).masked_fill(later_QK, torch.finfo(key_BGKD.dtype).min)
    else:
        bias = mask
    # The queries of all heads that share a key are rows of one matrix.
    rows = H // G * Q
    scores = torch.baddbmm(
        bias.expand(B, H, Q, K).reshape(B * G, rows, K),
        (query_BHQD * scaling).reshape(B * G, rows, D),
        key_BGKD.reshape(B * G, K, D).transpose(1, 2),
    )
    output = scores.softmax(dim=-1) @ value_BGKD.reshape(B * G, K, D)
    return output.view(B, H, Q, D).transpose(1, 2)
