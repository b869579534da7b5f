"""A CUDA device that does not exist: tensors that say `cuda:0`, whose numbers a CPU computes.

Each operation is first checked as a card would check it, and refused with the card's words: tensors of two devices,
`index_put` of another type, random numbers of a CPU's generator, kernels that only a CPU has. Then it runs for real.
So indexing by masks, sampling and generation work, which torch's FakeTensorMode cannot do. Triton's and bitsandbytes'
own kernels, their rounding, NCCL and a full memory are not covered.

This module loads the device guard that GUARD names, so it must be imported before torch.
"""

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

assert "torch" not in sys.modules, "torch looks for its devices when it is imported"
ctypes.CDLL(os.environ["GUARD"], mode=ctypes.RTLD_GLOBAL)

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
CARD = torch.device("cuda", 0)
CARD_BYTES = 80 * 2**30
COPIES = {aten.copy_.default, aten._to_copy.default, aten.set_.source_Tensor}
"""Operations that read tensors of both devices."""
INDEX_READS = {aten.index.Tensor, aten._unsafe_index.Tensor}
INDEX_WRITES = {aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations that may get their indices from the CPU."""

computed = Counter[str]()
"""How often each operation was computed for the card."""


class CardTensor(torch.Tensor):
    """Tensor on the pretended card; `numbers` are on the CPU."""

    @staticmethod
    def __new__(cls: Any, numbers: torch.Tensor, requires_grad: bool = False) -> "CardTensor":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            layout=numbers.layout,
            device=CARD,
            requires_grad=requires_grad,
        )
        tensor.numbers = numbers
        return tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"CardTensor({self.numbers})"

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: "CardTensor") -> None:
        torch.Tensor.data.__set__(self, value)
        self.numbers = value.numbers

    def tolist(self) -> Any:
        return self.numbers.tolist()

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy: use Tensor.cpu() first")

    __array__ = numpy

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        copy: torch.Tensor = CardTensor(self.numbers.clone(), self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, _: Any) -> Any:
        return CardTensor, (self.numbers.detach(), self.requires_grad)


def on_card(value: Any) -> bool:
    return isinstance(value, CardTensor)


def to_card(value: Any) -> Any:
    return CardTensor(value) if isinstance(value, torch.Tensor) and not on_card(value) else value


def to_cpu(value: Any) -> Any:
    return value.numbers if on_card(value) else value


def check(function: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
    """Raise what a card raises if it cannot compute this."""
    here = [tensor for tensor in tensors if on_card(tensor)]
    elsewhere = [tensor for tensor in tensors if not on_card(tensor)]
    if not here:
        return
    if function in INDEX_WRITES and args[0].dtype != args[2].dtype:
        raise RuntimeError(
            "Index put requires the source and destination dtypes match, "
            f"got {args[0].dtype} for the destination and {args[2].dtype} for the source."
        )
    if function in INDEX_READS | INDEX_WRITES:
        if not on_card(args[0]):
            raise RuntimeError(f"indices should be on the same device as the indexed tensor (cpu): {function}")
        # Indices may come from the CPU, and so may a single value.
        elsewhere = [args[2]] if function in INDEX_WRITES and not on_card(args[2]) and args[2].dim() else []
    elif torch.Tag.pointwise in function.tags or function is aten.fill_.Tensor:
        elsewhere = [tensor for tensor in elsewhere if tensor.dim()]
    if elsewhere and function not in COPIES:
        shapes = [tuple(tensor.shape) for tensor in elsewhere]
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"({function}, shapes {shapes})"
        )
    if "for_cpu" in str(function) or "mkldnn" in str(function):
        raise NotImplementedError(f"{function} on CUDA")


def _product(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return left.to(dtype) @ right.to(dtype)


PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {
    "aten.mm.dtype": _product,
    "aten.bmm.dtype": _product,
    "aten.addmm.dtype": lambda bias, left, right, dtype, beta=1, alpha=1: (
        beta * bias.to(dtype) + alpha * _product(left, right, dtype)
    ),
    "aten.baddbmm.dtype": lambda bias, left, right, dtype, beta=1, alpha=1: (
        beta * bias.to(dtype) + alpha * _product(left, right, dtype)
    ),
}
"""Products of bfloat16 matrices with a float32 result, which only a card has."""


def compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Check an operation, and compute it on the CPU."""
    if function._schema.name.endswith(("pin_memory", "is_pinned")):
        return args[0] if function._schema.name.endswith("pin_memory") else False
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    check(function, args, tensors)
    reads_card = any(map(on_card, tensors))
    device, generator = kwargs.get("device"), kwargs.get("generator")
    wraps = reads_card if device is None else torch.device(device).type == "cuda"
    if wraps and generator is not None and generator.device.type == "cpu":
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    cpu_kwargs = kwargs | ({} if device is None else {"device": torch.device("cpu")})
    if cpu_kwargs.get("pin_memory"):
        cpu_kwargs["pin_memory"] = False
    compute_on_cpu = PRODUCTS.get(str(function), function) if reads_card else function
    result = compute_on_cpu(*tree_map(to_cpu, args), **tree_map(to_cpu, cpu_kwargs))
    if not wraps:
        return result
    computed[str(function)] += 1
    result = tree_map(to_card, result)
    if not reads_card or function in (aten._to_copy.default, aten.lift_fresh.default):
        return result
    if function._schema.name.endswith("_") and on_card(args[0]):
        return args[0]
    return return_and_correct_aliasing(function, args, kwargs, result)


class PretendedCard(TorchDispatchMode):
    """Computes what is asked of `cuda` while it is active, in its thread."""

    def __enter__(self) -> Any:
        self._lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self._lifted)
        super().__exit__(*error)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(function, args, kwargs or {})


def pretend() -> None:
    """Let torch.cuda answer as a machine with one H100, or with as many as CUDA_VISIBLE_DEVICES lists."""
    properties = SimpleNamespace(
        name="Pretended H100", total_memory=CARD_BYTES, multi_processor_count=132, major=9, minor=0
    )
    nothing: Callable[..., None] = lambda *_, **__: None  # noqa: E731
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: len(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")),
        "current_device": lambda: 0,
        "is_initialized": lambda: True,
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": lambda *_: properties,
        "is_bf16_supported": lambda *_, **__: True,
        "mem_get_info": lambda *_: (CARD_BYTES // 2, CARD_BYTES),
        "max_memory_allocated": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "get_rng_state": lambda *_: torch.empty(0, dtype=torch.uint8),
        "get_rng_state_all": lambda *_: [],
        **dict.fromkeys(("_lazy_init", "set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"), nothing),
        **dict.fromkeys(("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all"), nothing),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    for name in ("get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all"):
        setattr(torch.cuda.random, name, answers[name])
    compatible = torch._has_compatible_shallow_copy_type
    torch._has_compatible_shallow_copy_type = lambda left, right: (
        on_card(left) == on_card(right) and (on_card(left) or compatible(left, right))
    )
    torch.autograd.set_multithreading_enabled(False)
    # Views that inference mode makes of a subclass cannot be written.
    torch.inference_mode = lambda *_, **__: torch.no_grad()
