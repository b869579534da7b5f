"""Key-value cache of sequences that are computed together.

Shapes: B rows (sequences), H key-value heads, T new tokens of all rows packed in one batch, N tokens, D head size.
"""

from collections.abc import Sequence

import torch

from .attention import PackedBatch, pack_batch
from .prefixes import Geometry, Prefix, PrefixStore

GROWTH_TOKENS = 256


class KeyValueSlots:
    """A key-value cache whose row i holds `lengths[i]` tokens, the first of them in the stored prefix `prefixes[i]`.

    Replaces a transformers cache: attention layers call `update`, which writes in place and returns the cache, where
    a DynamicCache would copy everything for every token.
    """

    def __init__(self, geometry: Geometry, budget_tokens: int, store: PrefixStore) -> None:
        self.lengths: list[int] = []
        self.prefixes: list[Prefix] = []
        self._geometry = geometry
        self._budget_tokens = budget_tokens
        self._store = store
        self._rows = self._tokens = 0
        self._layers: list[torch.Tensor] = [self._memory(0, 0) for _ in range(geometry.layers)]
        self._counts: list[int] = []

    def add(self, prefix: Prefix) -> None:
        """Add a row that holds the tokens of `prefix`, which it reads in place."""
        self.lengths.append(prefix.tokens)
        self.prefixes.append(prefix)

    def read_in_place(self, row: int, prefix: Prefix) -> None:
        """Let `row` read its first tokens in `prefix`, where they are stored, and the others in its own memory."""
        if prefix == self.prefixes[row]:
            return
        length = self.lengths[row]
        self._reserve(row + 1, length - prefix.tokens)
        for index, layer in enumerate(self._layers):
            # A copy, because the tokens may move by less than their number.
            layer[:, row, :, : length - prefix.tokens] = self.read(row, index, prefix.tokens, length).clone()
        self.prefixes[row] = prefix

    def read(self, row: int, layer: int, start: int, stop: int) -> torch.Tensor:
        """Return the keys and values of tokens start..stop of `row` in one layer, (2, H, N, D)."""
        prefix = self.prefixes[row]
        own = self._layers[layer][:, row, :, max(0, start - prefix.tokens) : max(0, stop - prefix.tokens)]
        if start >= prefix.tokens:
            return own
        stored = self._store.layers[layer][:, :, prefix.positions][:, :, start:stop]
        return torch.cat((stored, own), dim=2) if stop > prefix.tokens else stored

    def copy_row(self, source: int, row: int) -> None:
        """Copy the row `source` to `row`, a new or a used one."""
        prefix, length = self.prefixes[source], self.lengths[source]
        self._reserve(row + 1, length - prefix.tokens)
        for layer in self._layers:
            layer[:, row, :, : length - prefix.tokens] = layer[:, source, :, : length - prefix.tokens]
        self.lengths[row : row + 1] = [length]
        self.prefixes[row : row + 1] = [prefix]

    def drop(self, row: int) -> None:
        """Free `row`; the last row takes its place, so that rows in use always come first."""
        last = len(self.lengths) - 1
        if row != last:
            self.copy_row(last, row)
        self.lengths.pop()
        self.prefixes.pop()

    def prepare_pass(self, counts: Sequence[int], adapters: Sequence[str]) -> tuple[PackedBatch, list[int]]:
        """Prepare a forward pass that adds counts[i] > 0 tokens to row i; `complete_pass` completes it.

        Returns the batch, and the order of its rows: rows of one adapter, and of these the rows of one prefix, come
        one after another.
        """
        self._counts = list(counts)
        self._reserve(len(counts), max(own + count for own, count in zip(self._own, counts, strict=True)))
        order = sorted(range(len(counts)), key=lambda row: (adapters[row], self.prefixes[row].blocks))
        self._batch = pack_batch(self.lengths, counts, order, self.prefixes, self._store.layers, like=self._layers[0])
        return self._batch, order

    def complete_pass(self) -> None:
        """Count the tokens of the prepared forward pass, which has succeeded."""
        self.lengths = [length + count for length, count in zip(self.lengths, self._counts, strict=True)]

    def update(
        self, keys_1HTD: torch.Tensor, values_1HTD: torch.Tensor, layer_index: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's keys and values of the batch; return those of all rows without prefixes, (B, H, N, D) each.

        Each attention layer calls it.
        """
        keys_BHND, values_BHND = self._layers[layer_index]
        rows_T, own_positions_T = self._batch.rows, self._batch.own_positions
        keys_BHND[rows_T, :, own_positions_T] = keys_1HTD[0].transpose(0, 1)
        values_BHND[rows_T, :, own_positions_T] = values_1HTD[0].transpose(0, 1)
        return keys_BHND, values_BHND

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the longest row; transformers calls it, but uses it only if no positions are given."""
        return max(self.lengths, default=0)

    @property
    def _own(self) -> list[int]:
        """Number of tokens of each row after its prefix."""
        return [length - prefix.tokens for length, prefix in zip(self.lengths, self.prefixes, strict=True)]

    def _reserve(self, rows: int, tokens: int) -> None:
        """Make room for `rows` rows of `tokens` tokens; the contents stay.

        Memory is kept for later batches, and grows in large steps, while it stays within the budget.
        """
        if rows <= self._rows and tokens <= self._tokens:
            return
        rows = max(rows, len(self.lengths))
        tokens = max(1, -(-max(tokens, *self._own, 0) // GROWTH_TOKENS)) * GROWTH_TOKENS
        if rows * self._tokens <= self._budget_tokens:
            tokens = max(tokens, self._tokens)
        spare = 2 * self._rows if rows > self._rows else self._rows
        rows = max(rows, min(spare, self._budget_tokens // tokens))
        kept_rows, kept_tokens = min(rows, self._rows), min(tokens, self._tokens)
        for index, old in enumerate(self._layers):
            self._layers[index] = new = self._memory(rows, tokens)
            new[:, :kept_rows, :, :kept_tokens] = old[:, :kept_rows, :, :kept_tokens]
        self._rows, self._tokens = rows, tokens

    def _memory(self, rows: int, tokens: int) -> torch.Tensor:
        """Return zeros: a masked position still multiplies its value by 0, and 0 times garbage may be NaN."""
        shape = self._geometry
        return torch.zeros(2, rows, shape.heads, tokens, shape.head_size, dtype=shape.dtype, device=shape.device)
