"""Key-value cache of sequences that are computed together.

Shapes: L layers, B rows (sequences), H key-value heads, T new tokens of all rows packed in one line, N tokens,
D head size.
"""

from collections.abc import Sequence

import torch

from .attention import Line, line
from .geometry import Geometry

GROWTH_TOKENS = 256


class KeyValueSlots:
    """A key-value cache whose row i holds `lengths[i]` tokens.

    Replaces a transformers cache: attention layers call `update`, which writes in place and returns the cache, where
    a DynamicCache would copy everything for every token.
    """

    def __init__(self, geometry: Geometry, budget_tokens: int) -> None:
        self.lengths: list[int] = []
        self._geometry = geometry
        self._budget_tokens = budget_tokens
        self._rows = self._tokens = 0
        self._layers: list[torch.Tensor] = [self._memory(0, 0) for _ in range(geometry.layers)]
        self._counts: list[int] = []

    def reserve(self, rows: int, tokens: int) -> None:
        """Make room for `rows` rows of `tokens` tokens; the contents stay."""
        if rows <= self._rows and tokens <= self._tokens:
            return
        tokens = max(-(-tokens // GROWTH_TOKENS) * GROWTH_TOKENS, self._tokens)
        # Keep the rows of an earlier, larger batch, unless longer rows would then exceed the budget.
        if self._rows * tokens <= self._budget_tokens:
            rows = max(rows, self._rows)
        rows = max(rows, len(self.lengths))
        for index, old in enumerate(self._layers):
            kept = min(rows, self._rows)
            self._layers[index] = new = self._memory(rows, tokens)
            new[:, :kept, :, : self._tokens] = old[:, :kept]
        self._rows, self._tokens = rows, tokens

    def write(self, row: int, values_LHND: torch.Tensor | None) -> None:
        """Fill `row`, a new or a used one, with keys and values in the shape that `read` returns; None empties it."""
        length = 0 if values_LHND is None else values_LHND.shape[3]
        if values_LHND is not None:
            for layer, values in zip(self._layers, values_LHND, strict=True):
                layer[:, row, :, :length] = values
        self.lengths[row : row + 1] = [length]

    def read(self, row: int, start: int, stop: int) -> torch.Tensor:
        """Return a copy of the keys and values of tokens start..stop of `row`, as one tensor (L, 2, H, N, D)."""
        return torch.stack([layer[:, row, :, start:stop] for layer in self._layers])

    def copy_row(self, source: int, row: int) -> None:
        """Copy the row `source` to `row`, a new or a used one."""
        length = self.lengths[source]
        for layer in self._layers:
            layer[:, row, :, :length] = layer[:, source, :, :length]
        self.lengths[row : row + 1] = [length]

    def drop(self, row: int) -> None:
        """Free `row`; the last row takes its place, so that rows in use always come first."""
        last = len(self.lengths) - 1
        if row != last:
            self.copy_row(last, row)
        self.lengths.pop()

    def expect(self, counts: Sequence[int], order: Sequence[int]) -> Line:
        """Prepare a forward pass that adds counts[i] > 0 tokens to row i, rows in `order`; `advance` completes it."""
        self._counts = list(counts)
        self._line = line(self.lengths, counts, order, like=self._layers[0])
        return self._line

    def advance(self) -> None:
        """Count the tokens of the prepared forward pass, which has succeeded."""
        self.lengths = [length + count for length, count in zip(self.lengths, self._counts, strict=True)]

    def update(
        self, keys_1HTD: torch.Tensor, values_1HTD: torch.Tensor, layer_index: int, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's keys and values of the line, and return the layer's whole cache, (B, H, N, D) each.

        Each attention layer calls it.
        """
        keys_BHND, values_BHND = self._layers[layer_index]
        rows_T, positions_T = self._line.rows, self._line.positions
        keys_BHND[rows_T, :, positions_T] = keys_1HTD[0].transpose(0, 1)
        values_BHND[rows_T, :, positions_T] = values_1HTD[0].transpose(0, 1)
        return keys_BHND, values_BHND

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the longest row; transformers calls it, but uses it only if no positions are given."""
        return max(self.lengths, default=0)

    def _memory(self, rows: int, tokens: int) -> torch.Tensor:
        """Return zeros: a masked position still multiplies its value by 0, and 0 times garbage may be NaN."""
        shape = self._geometry
        return torch.zeros(2, rows, shape.heads, tokens, shape.head_size, dtype=shape.dtype, device=shape.device)
