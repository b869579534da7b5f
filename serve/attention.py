"""Attention of tokens that stand in one line to the rows that they belong to.

Shapes: T tokens of all rows in one line, B rows, H query heads, G of them for each of H/G key-value heads,
N tokens held and new, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

NAME = "rows_in_line"
"""By which transformers finds `attend`."""


@dataclass(frozen=True)
class Line:
    """The new tokens of one pass. No padding: what is computed for a token is computed once, and for tokens alone."""

    rows: torch.Tensor
    """(T) of each token."""
    positions: torch.Tensor
    """(T) in their rows."""
    last: torch.Tensor
    """(B) where in the line each row's last token is."""
    mask: torch.Tensor
    """(B, 1, 1, N) what is added to the scores of the last tokens."""
    earlier: tuple[tuple[int, slice, torch.Tensor], ...]
    """Of each row with several tokens: its number, where all but the last are, and what is added to their scores."""


def line(lengths: Sequence[int], counts: Sequence[int], order: Sequence[int], like: torch.Tensor) -> Line:
    """Rows that hold lengths[i] tokens add counts[i] > 0 each, and stand in the line by `order`.

    `like` has the device and the type of the scores.
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
    places_B = torch.tensor(ends, device=device) - 1
    return Line(
        rows=torch.tensor(rows, device=device),
        positions=torch.tensor(positions, device=device),
        last=torch.tensor(last, device=device),
        mask=_mask(places_B[:, None, None, None], max(ends), like),
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
    """In the place of a transformers attention function; keys and values are the whole memory of a layer.

    The last tokens of all rows at once, which is all there is to do while no prompt comes in; others row by row.
    """
    query_THD = query_1HTD[0].transpose(0, 1)
    found_THD = torch.empty_like(query_THD)
    rows, top = len(line.last), line.mask.shape[3]
    last_BH1D = query_THD[line.last][:, :, None]
    keys, values = keys_BHND[:rows, :, :top], values_BHND[:rows, :, :top]
    found_THD[line.last] = _attend(last_BH1D, keys, values, line.mask, scaling)[:, :, 0]
    for row, span, mask_11TN in line.earlier:
        held = mask_11TN.shape[3]
        keys, values = keys_BHND[row : row + 1, :, :held], values_BHND[row : row + 1, :, :held]
        found_THD[span] = _attend(query_1HTD[:, :, span], keys, values, mask_11TN, scaling)[0].transpose(0, 1)
    return found_THD[None], None


def _attend(
    query_BHTD: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask_B1TN: torch.Tensor, scaling: float
) -> torch.Tensor:
    # Query heads that share keys are taken for more queries, so that the keys need not be repeated.
    rows, heads, tokens, size = query_BHTD.shape
    sharing = heads // keys.shape[1]
    grouped = query_BHTD.reshape(rows, heads // sharing, sharing * tokens, size)
    mask = mask_B1TN.repeat(1, 1, sharing, 1)
    found = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
    return found.reshape(query_BHTD.shape)


def _mask(places: torch.Tensor, top: int, like: torch.Tensor) -> torch.Tensor:
    """Zero for the tokens up to each place, -inf for those behind it."""
    behind = torch.arange(top, device=like.device) > places
    return torch.zeros(behind.shape, dtype=like.dtype, device=like.device).masked_fill(behind, -torch.inf)
