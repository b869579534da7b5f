"""Puts a prompt and all its responses into one row, so that the model reads a long prompt once.

    prompt  | response 0 | response 1 | response 2 | padding

Each response attends to the prompt and to itself, and its positions continue those of the prompt. Its hidden states and
gradient therefore equal those of a separate row.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from .group import Group

_PROMPT, _PADDING = -1, -2
"""Part numbers of the tokens that belong to no response."""
_ANY_TOKEN = 0
"""Token id used as padding; no other token attends to it."""


class Packed(NamedTuple):
    """B groups in rows of L tokens. R: all responses, group after group. N: all their tokens, response by response."""

    ids_BL: Tensor
    positions_BL: Tensor
    part_BL: Tensor
    """Number of the response that a token belongs to, in its row; negative for prompt and padding."""
    row_N: Tensor
    source_N: Tensor
    """Position in its row whose hidden state predicts the token: for a response's first token, the prompt's end."""
    token_N: Tensor
    response_N: Tensor
    """Number of the response among all R."""
    place_N: Tensor
    """Place of the token in its response."""
    row_R: Tensor
    last_R: Tensor
    """Position in its row of a response's last token."""
    longest: int
    """Tokens of the longest prompt with one response."""

    @property
    def responses(self) -> int:
        """R."""
        return len(self.row_R)

    @property
    def sees(self) -> Tensor:
        """True where the token of a row may attend to the token of a column, (B, L, L)."""
        part_BL, index_L = self.part_BL, torch.arange(self.part_BL.shape[1], device=self.part_BL.device)
        same_BLL = part_BL[:, :, None] == part_BL[:, None, :]
        return (same_BLL | (part_BL == _PROMPT)[:, None, :]) & (index_L[:, None] >= index_L)

    @property
    def shortest_prompt(self) -> int:
        """Length of the shortest prompt: this many first tokens of every row belong to a prompt."""
        return int((self.part_BL == _PROMPT).sum(dim=1).min())

    def dense_mask(self, dtype: torch.dtype, first: int = 0) -> Tensor:
        """Return the rows of `sees` from token `first` on, as numbers to add to attention scores, (B, 1, rows, L)."""
        sees_BLL = self.sees[:, first:]
        zeros_BLL = torch.zeros(sees_BLL.shape, dtype=dtype, device=sees_BLL.device)
        return zeros_BLL.masked_fill(~sees_BLL, torch.finfo(dtype).min)[:, None]

    def block_mask(self) -> Any:
        """Return `sees` for flex attention, which skips blocks without any True; memory is linear in L."""
        from torch.nn.attention.flex_attention import create_block_mask

        part_BL = self.part_BL

        def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            same = (part_BL[batch, query] == part_BL[batch, key]) | (part_BL[batch, key] == _PROMPT)
            return same & (query >= key)

        rows, length = part_BL.shape
        return create_block_mask(attends, rows, None, length, length, device=part_BL.device)

    def by_response(self, values_N: Tensor, length: int) -> Tensor:
        """Return values of tokens by response and place, 0 after the end of a response, (R, `length`)."""
        by_response_RT = values_N.new_zeros(self.responses, length)
        return by_response_RT.index_put((self.response_N, self.place_N), values_N)

    def sums(self, values_N: Tensor) -> Tensor:
        """Return the sum over the tokens of each response, (R,)."""
        return values_N.new_zeros(self.responses).index_add(0, self.response_N, values_N)

    def to(self, device: torch.device) -> "Packed":
        """Return the same rows on this device."""
        *tensors, longest = self
        return Packed._make([*(part.to(device) for part in tensors if isinstance(part, Tensor)), longest])


def pack(groups: Sequence[Group]) -> Packed:
    """Put each group into a row, equal responses once; rows are padded on the right."""
    rows, positions, parts = list[Tensor](), list[Tensor](), list[Tensor]()
    columns: list[tuple[int, int, int, int, int]] = []
    ends: list[tuple[int, int]] = []
    for row, group in enumerate(groups):
        ids, start = list(group.prompt), len(group.prompt)
        places, numbers = list(range(start)), [_PROMPT] * start
        firsts: dict[tuple[int, ...], int] = {}
        for number, response in enumerate(group.responses):
            first = firsts.setdefault(tuple(response), len(ids))
            sources = [start - 1, *range(first, first + len(response) - 1)]
            columns += [
                (row, source, token, len(ends), place)
                for place, (source, token) in enumerate(zip(sources, response, strict=True))
            ]
            ends.append((row, first + len(response) - 1))
            if first == len(ids):
                ids += response
                places += range(start, start + len(response))
                numbers += [number] * len(response)
        rows.append(torch.tensor(ids))
        positions.append(torch.tensor(places))
        parts.append(torch.tensor(numbers))
    row_N, source_N, token_N, response_N, place_N = torch.tensor(columns).unbind(dim=1)
    row_R, last_R = torch.tensor(ends).unbind(dim=1)
    return Packed(
        pad_sequence(rows, batch_first=True, padding_value=_ANY_TOKEN),
        pad_sequence(positions, batch_first=True),
        pad_sequence(parts, batch_first=True, padding_value=_PADDING),
        row_N,
        source_N,
        token_N,
        response_N,
        place_N,
        row_R,
        last_R,
        max(group.longest for group in groups),
    )
