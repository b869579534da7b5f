"""Reads packed rows once through the layers below the first adapter, for all adapters and all passes over the rows.

No adapter changes these layers, and nothing in them is trained. With LoRA on the upper half of the layers they are half
of a pass: policy, reference and reward model differ only above them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from .packed import Packed


class LayersBelow:
    """The layers of `trunk` below the first adapter; what leaves them is kept as long as the rows are."""

    def __init__(self, trunk: nn.Module) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        layers: Any = next((part for part in trunk.children() if isinstance(part, nn.ModuleList)), [])
        adapted = (any(isinstance(part, BaseTunerLayer) for part in layer.modules()) for layer in layers)
        count = next((number for number, is_adapted in enumerate(adapted) if is_adapted), 0)
        self._rows: Tensor | None = None
        self._known = WeakTensorKeyDictionary()
        for layer in layers[:count]:
            layer.forward = self._once(layer.forward, keeps=layer is layers[count - 1])

    @contextmanager
    def reading(self, packed: Packed) -> Iterator[None]:
        """Skip these layers while the trunk reads rows that it has read before."""
        self._rows = packed.ids_BL
        try:
            yield
        finally:
            self._rows = None

    def _once(self, forward: Callable[..., Any], *, keeps: bool) -> Callable[..., Any]:
        @torch.no_grad()
        def forward_once(hidden_BLH: Tensor, *arguments: Any, **options: Any) -> Any:
            rows = self._rows
            if rows is not None and rows in self._known:
                return self._known[rows] if keeps else hidden_BLH
            read = forward(hidden_BLH, *arguments, **options)
            if keeps and rows is not None and isinstance(read, Tensor):  # Of some models it is a tuple.
                self._known[rows] = read
            return read

        return forward_once
