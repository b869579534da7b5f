"""Measures the peak memory of tensors on a CPU, whose allocator keeps no count."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of live tensors, including those of backward passes, but not workspaces inside kernels."""

    def __init__(self, existing: Iterable[Tensor] = ()) -> None:
        """Count `existing` tensors, and every tensor that is made while this mode is active."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        for tensor in existing:
            self._note(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._note, result)
        return result

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def end(_: object) -> None:
            del self._alive[key]
            self.now -= size

        self._alive[key] = weakref.ref(storage, end)
        self.now += size
        self.peak = max(self.peak, self.now)


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a model, and the quantisation states of its 4-bit weights."""
    yield from model.parameters()
    yield from model.buffers()
    for parameter in model.parameters():
        state: Any = getattr(parameter, "quant_state", None)
        for owner in (state, getattr(state, "state2", None)):
            yield from (value for value in vars(owner or object).values() if isinstance(value, Tensor))
