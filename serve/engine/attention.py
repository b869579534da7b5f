"""Attention for the tokens of several rows packed into one batch: each token attends to its own row only.

A row's first tokens may be in a stored prefix that other rows share. Attention over the prefix is computed for all
these rows at once and then combined with attention over the tokens of each row.

Shapes: T tokens of all rows packed in one batch, B rows, H heads (of keys and values fewer where queries share them),
N cached and new tokens, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from .prefixes import Prefix

NAME = "rows_in_line"
"""Name under which `attend` is registered with transformers."""


@dataclass(frozen=True)
class PackedBatch:
    """The new tokens of one forward pass, without padding."""

    rows: torch.Tensor
    """Row of each token, (T)."""
    positions: torch.Tensor
    """Position of each token in its row, (T)."""
    own_positions: torch.Tensor
    """Position of each token among those of its row that are not in its prefix, (T)."""
    last: torch.Tensor
    """Index in the batch of each row's last token, (B)."""
    mask: torch.Tensor
    """Additive attention mask of the last tokens, (B, 1, 1, N)."""
    earlier: tuple[tuple[int, slice, torch.Tensor], ...]
    """Rows with several tokens: index, span of all tokens but the last, and additive mask of these tokens."""
    shared: tuple[tuple[slice, Prefix], ...]
    """Prefixes that rows read in place, with the span of all tokens of these rows."""
    stored: Sequence[torch.Tensor]
    """Memory of the prefixes in each layer, (2, H, N, D)."""


def pack_batch(
    lengths: Sequence[int],
    counts: Sequence[int],
    order: Sequence[int],
    prefixes: Sequence[Prefix],
    stored: Sequence[torch.Tensor],
    like: torch.Tensor,
) -> PackedBatch:
    """Return the batch in which row i, which holds lengths[i] tokens, adds counts[i] > 0; rows come in `order`.

    The first tokens of row i are in prefixes[i]. `like` has the device and the dtype of the attention scores.
    """
    device = like.device
    rows, positions, own_positions, earlier, last = list[int](), list[int](), list[int](), [], [0] * len(counts)
    ends = [length - prefix.tokens + count for length, prefix, count in zip(lengths, prefixes, counts, strict=True)]
    for row in order:
        start, stop = len(rows), len(rows) + counts[row] - 1
        rows += [row] * counts[row]
        positions += range(lengths[row], lengths[row] + counts[row])
        own_positions += range(ends[row] - counts[row], ends[row])
        last[row] = stop
        if stop > start:
            own = torch.tensor(own_positions[start:stop], device=device)
            earlier.append((row, slice(start, stop), _mask(own[None, None, :, None], ends[row] - 1, like)))
    last_own_positions_B = torch.tensor(ends, device=device) - 1
    return PackedBatch(
        rows=torch.tensor(rows, device=device),
        positions=torch.tensor(positions, device=device),
        own_positions=torch.tensor(own_positions, device=device),
        last=torch.tensor(last, device=device),
        mask=_mask(last_own_positions_B[:, None, None, None], max(ends), like),
        earlier=tuple(earlier),
        shared=_shared(counts, order, prefixes),
        stored=stored,
    )


def _shared(
    counts: Sequence[int], order: Sequence[int], prefixes: Sequence[Prefix]
) -> tuple[tuple[slice, Prefix], ...]:
    shared, start = [], 0
    for _, group in groupby(order, key=lambda row: prefixes[row].blocks):
        members = list(group)
        stop = start + sum(counts[row] for row in members)
        if prefixes[members[0]].tokens:
            shared.append((slice(start, stop), prefixes[members[0]]))
        start = stop
    return tuple(shared)


def can_share(device: torch.device) -> bool:
    """Return True if rows may read a prefix together: only torch's kernel for CPUs takes a mask and returns logs."""
    return device.type == "cpu"


def attend(
    module: Any,
    query_1HTD: torch.Tensor,
    keys_BHND: torch.Tensor,
    values_BHND: torch.Tensor,
    attention_mask: None,
    *,
    batch: PackedBatch,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Replace a transformers attention function; keys and values are those of a layer's rows after their prefixes.

    The last tokens of all rows are computed at once, which is all the work while no prompt is read; the other
    tokens are computed row by row.
    """
    query_THD = query_1HTD[0].transpose(0, 1)
    attended_THD = torch.empty_like(query_THD)
    weights_TH = torch.empty(query_THD.shape[:2], device=query_THD.device)
    rows, longest = len(batch.last), batch.mask.shape[3]
    keys, values = keys_BHND[:rows, :, :longest], values_BHND[:rows, :, :longest]
    attended, weights = _attend_to(query_THD[batch.last][:, :, None], keys, values, batch.mask, scaling)
    attended_THD[batch.last], weights_TH[batch.last] = attended[:, :, 0], weights[:, :, 0]
    for row, span, mask_11TN in batch.earlier:
        visible = mask_11TN.shape[3]
        keys, values = keys_BHND[row : row + 1, :, :visible], values_BHND[row : row + 1, :, :visible]
        attended, weights = _attend_to(query_1HTD[:, :, span], keys, values, mask_11TN, scaling)
        attended_THD[span], weights_TH[span] = attended[0].transpose(0, 1), weights[0].T
    for span, prefix in batch.shared:
        keys, values = batch.stored[module.layer_idx][:, None, :, prefix.positions]
        attended, weights = _attend_to(query_1HTD[:, :, span], keys, values, None, scaling)
        share_TH = (weights[0].T - weights_TH[span]).sigmoid_().to(attended.dtype)
        attended_THD[span] = attended_THD[span].lerp(attended[0].transpose(0, 1), share_TH[:, :, None])
    return attended_THD[None], None


def _attend_to(
    query_BHTD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask_B1TN: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attended values and the log of each query's sum of exponential scores, (B, H, T) float32.

    Attention over two sets of keys is the mean of both results, weighted by the exponentials of these logs. The logs
    are zeros on a device on which no rows share a prefix.
    """
    # Query heads that share keys are treated as additional queries, so that the keys need not be repeated.
    rows, heads, tokens, size = query_BHTD.shape
    sharing = heads // keys.shape[1]
    grouped = query_BHTD.reshape(rows, heads // sharing, sharing * tokens, size)
    # The mask of a single token is the same for all query heads without copies.
    mask = mask_B1TN if mask_B1TN is None or tokens == 1 else mask_B1TN.repeat(1, 1, sharing, 1)
    if not can_share(query_BHTD.device):
        attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
        return attended.reshape(query_BHTD.shape), torch.zeros(rows, heads, tokens, device=query_BHTD.device)
    attended, logs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        grouped, keys, values, attn_mask=mask, scale=scaling
    )
    return attended.reshape(query_BHTD.shape), logs.reshape(rows, heads, tokens)


def _mask(last_own_positions: torch.Tensor, longest: int, like: torch.Tensor) -> torch.Tensor:
    """Return 0 for the tokens up to each last place and -inf for those after it."""
    after = torch.arange(longest, device=like.device) > last_own_positions
    return torch.zeros(after.shape, dtype=like.dtype, device=like.device).masked_fill(after, -torch.inf)
