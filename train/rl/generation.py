"""Samples responses from a language model, with each prompt read once for all its responses.

A prompt is a row, and its responses are columns: each step reads one token of every response that goes on.

U: prompts; Q: responses to each; P: tokens of the longest prompt; K: keys in the cache; B: all responses; V: words.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retroformer.errors import NotFinite

from ..integrity.finite import LOWER_THE_RATE

_NONE = -1
"""Number of a response in a place of the grid without one."""


class _Grid:
    """Places of the responses that go on, and the keys and values of what the model has read."""

    def __init__(self, prompts: Sequence[list[int]], device: torch.device) -> None:
        from transformers import DynamicCache

        runs = [(prompt, len(list(same))) for prompt, same in groupby(prompts)]
        numbers = torch.split(torch.arange(len(prompts), device=device), [count for _, count in runs])
        self.number_UQ = pad_sequence(list(numbers), batch_first=True, padding_value=_NONE)
        self.ids_UP = pad_sequence([torch.tensor(prompt, device=device) for prompt, _ in runs], batch_first=True)
        self.length_U = torch.tensor([len(prompt) for prompt, _ in runs], device=device)
        self.read = 0
        """Steps read so far."""
        # Without the model's config, which may have layers that forget: attention is that of training.
        self.cache = DynamicCache()

    @property
    def occupied(self) -> Tensor:
        """True in the places with a response, (U, Q)."""
        return self.number_UQ != _NONE

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Return what each place sees, its prompt and its own tokens, as numbers to add to scores, (U, 1, Q, K)."""
        (U, Q), P = self.number_UQ.shape, self.ids_UP.shape[1]
        prompt_UQP = (torch.arange(P, device=self.length_U.device) < self.length_U[:, None])[:, None].expand(U, Q, P)
        own_QK = torch.eye(Q, dtype=torch.bool, device=self.length_U.device).repeat(1, self.read + 1)
        sees_UQK = torch.cat([prompt_UQP, own_QK.expand(U, *own_QK.shape)], dim=2)
        return torch.zeros(sees_UQK.shape, dtype=dtype, device=sees_UQK.device).masked_fill_(
            ~sees_UQK, torch.finfo(dtype).min
        )[:, None]

    def narrow(self) -> None:
        """Drop the rows and columns without a response."""
        left_U = self.occupied.sum(dim=1)
        rows, width = left_U.nonzero()[:, 0], int(left_U.max())
        (U, Q), P = self.number_UQ.shape, self.ids_UP.shape[1]
        if (len(rows), width) == (U, Q):
            return
        place_UQ = (~self.occupied)[rows].int().argsort(dim=1, stable=True)[:, :width]
        self.number_UQ = self.number_UQ[rows].gather(1, place_UQ)
        self.ids_UP, self.length_U = self.ids_UP[rows], self.length_U[rows]

        def kept(all_UGKD: Tensor) -> Tensor:
            of_prompt, own = torch.split(all_UGKD[rows], [P, self.read * Q], dim=2)
            own = torch.unflatten(own, 2, (self.read, Q)).take_along_dim(place_UQ[:, None, None, :, None], dim=3)
            return torch.cat([of_prompt, own.flatten(2, 3)], dim=2)

        for layer in self.cache.layers:
            layer.keys, layer.values = kept(layer.keys), kept(layer.values)


@torch.no_grad()
def sampled(trunk: Any, head: Any, prompts: Sequence[list[int]], length: int, pad_id: int, eos_id: int) -> Tensor:
    """Return a response to each prompt, of at most `length` tokens, padded on the right, (B, T).

    Raises:
        NotFinite: probabilities are infinite or not numbers.
    """
    grid = _Grid(prompts, trunk.device)
    # Drawn for all responses at once, so that a response does not depend on when others end.
    uniform_TB = torch.rand(length, len(prompts), dtype=torch.float64, device=trunk.device)
    response_BT = torch.full((len(prompts), length), pad_id, device=trunk.device)
    hidden_UPH = trunk(input_ids=grid.ids_UP, past_key_values=grid.cache, use_cache=True).last_hidden_state
    hidden_UQH = hidden_UPH[torch.arange(len(hidden_UPH)), grid.length_U - 1, None].expand(*grid.number_UQ.shape, -1)
    for step in range(length):
        goes_on_UQ = grid.occupied
        numbers = grid.number_UQ[goes_on_UQ]
        tokens = drawn(head(hidden_UQH[goes_on_UQ]), uniform_TB[step, numbers])
        response_BT[numbers, step] = tokens
        grid.number_UQ[goes_on_UQ] = numbers.where(tokens != eos_id, _NONE)
        if step + 1 == length or not bool(grid.occupied.any()):
            break
        grid.narrow()
        hidden_UQH = trunk(
            input_ids=response_BT[grid.number_UQ, step],
            attention_mask=grid.mask(trunk.dtype),
            position_ids=(grid.length_U + step)[:, None].expand(grid.number_UQ.shape),
            past_key_values=grid.cache,
            use_cache=True,
        ).last_hidden_state
        grid.read += 1
    return response_BT[:, : step + 1]


def drawn(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Return a token for each row of logits, distributed as their softmax, from numbers uniform in [0, 1), (B,).

    Raises:
        NotFinite: probabilities are infinite or not numbers.
    """
    # One uniform number for a row: torch.multinomial draws one for each entry, which takes ten times as long on a CPU.
    # The sums are in double precision, so that no token is lost.
    cumulative_BV = logits_BV.float().softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    total_B = cumulative_BV[:, -1]
    if not bool(total_B.isfinite().all()):
        raise NotFinite(f"The policy's probabilities are infinite or not numbers: {LOWER_THE_RATE}")
    return torch.searchsorted(cumulative_BV, (uniform_B * total_B)[:, None], right=True)[:, 0]
