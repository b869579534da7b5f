"""Attention for the tokens of several rows packed into one line: each token attends to its own row only.

Shapes: T tokens of all rows packed in one line, B rows, H query heads (G for each of H/G key-value heads),
N cached and new tokens, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME = "rows_in_line"
"""Name under which `attend` is registered with transformers."""


@dataclass(frozen=True)
class Line:
    """The new tokens of one forward pass, packed without padding, so that no computation is wasted."""

    rows: torch.Tensor
    """Row of each token, (T)."""
    positions: torch.Tensor
    """Position of each token in its row, (T)."""
    last: torch.Tensor
    """Index in the line of each row's last token, (B)."""
    mask: torch.Tensor
    """Additive attention mask of the last tokens, (B, 1, 1, N)."""
    earlier: tuple[tuple[int, slice, torch.Tensor], ...]
    """Rows with several tokens: index, span of all tokens but the last, and additive mask of these tokens."""


def line(lengths: Sequence[int], counts: Sequence[int], order: Sequence[int], like: torch.Tensor) -> Line:
    """Return the line in which row i, which holds lengths[i] tokens, adds counts[i] > 0; rows come in `order`.

    `like` has the device and the dtype of the attention scores.
    """
    device = like.device
    ends = [length + count for length, count in zip(lengths, counts, strict=True)]
    rows, positions, earlier, last = list[int](), list[int](), [], [0] * len(counts)
    for row in order:
        start, stop = len(rows), len(rows) + counts[row] - 1
        rows += [row] * counts[row]
        positions += range(lengths[row], ends[row])
        last[row] = stop
        if stop > start:
            own = torch.tensor(positions[start:stop], device=device)
            earlier.append((row, slice(start, stop), _mask(own[None, None, :, None], ends[row] - 1, like)))
    last_positions_B = torch.tensor(ends, device=device) - 1
    return Line(
        rows=torch.tensor(rows, device=device),
        positions=torch.tensor(positions, device=device),
        last=torch.tensor(last, device=device),
        mask=_mask(last_positions_B[:, None, None, None], max(ends), like),
        earlier=tuple(earlier),
    )


def attend(
    module: object,
    query_1HTD: torch.Tensor,
    keys_BHND: torch.Tensor,
    values_BHND: torch.Tensor,
    attention_mask: None,
    *,
    line: Line,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Replace a transformers attention function; keys and values are the whole cache of a layer.

    The last tokens of all rows are computed at once, which is all the work while no prompt is read; the other
    tokens are computed row by row.
    """
    query_THD = query_1HTD[0].transpose(0, 1)
    attended_THD = torch.empty_like(query_THD)
    rows, longest = len(line.last), line.mask.shape[3]
    last_BH1D = query_THD[line.last][:, :, None]
    keys, values = keys_BHND[:rows, :, :longest], values_BHND[:rows, :, :longest]
    attended_THD[line.last] = _attend(last_BH1D, keys, values, line.mask, scaling)[:, :, 0]
    for row, span, mask_11TN in line.earlier:
        visible = mask_11TN.shape[3]
        keys, values = keys_BHND[row : row + 1, :, :visible], values_BHND[row : row + 1, :, :visible]
        attended_THD[span] = _attend(query_1HTD[:, :, span], keys, values, mask_11TN, scaling)[0].transpose(0, 1)
    return attended_THD[None], None


def _attend(
    query_BHTD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask_B1TN: torch.Tensor, scaling: float
) -> torch.Tensor:
    # Query heads that share keys are treated as additional queries, so that the keys need not be repeated.
    rows, heads, tokens, size = query_BHTD.shape
    sharing = heads // keys.shape[1]
    grouped = query_BHTD.reshape(rows, heads // sharing, sharing * tokens, size)
    mask = mask_B1TN.repeat(1, 1, sharing, 1)
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
    return attended.reshape(query_BHTD.shape)


def _mask(last_positions: torch.Tensor, longest: int, like: torch.Tensor) -> torch.Tensor:
    """Return 0 for the tokens up to each last position and -inf for those after it."""
    after = torch.arange(longest, device=like.device) > last_positions
    return torch.zeros(after.shape, dtype=like.dtype, device=like.device).masked_fill(after, -torch.inf)
