"""Short rows in bf16 on a CPU are computed by plain matrix products, and give what fused attention gives."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from train.shared_prompt.attention import SHORT, quick_attention, split_attention
from train.shared_prompt.packed import Group, Packed, pack

GROUPS = [
    Group(list(range(20)), [[1, 2, 3], [4, 5]], []),
    Group(list(range(12)), [[6, 7, 8, 9]], [], number=1),
]
HEADS, KEY_HEADS, SIZE = 6, 2, 16
MODULE = SimpleNamespace(num_key_value_groups=HEADS // KEY_HEADS, is_causal=True, training=True)


def inputs(length: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, length, SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    # All of them are bf16 numbers, so that both dtypes begin with the same ones.
    return [torch.randn(shape, generator=generator).bfloat16().to(dtype).requires_grad_() for shape in shapes]


def read(packed: Packed | None, length: int, dtype: torch.dtype, first: int = 0) -> list[Tensor]:
    """Return the output and the gradients of the inputs; the last tokens weigh most. In bf16 it is the quick one."""
    tensors = inputs(length, dtype)
    mask = None if packed is None else packed.dense_mask(dtype, first)
    query, key, value = tensors
    attention = quick_attention if dtype == torch.bfloat16 else split_attention
    output, _ = attention(MODULE, query, key, value, mask, scaling=SIZE**-0.5, dropout=0.0)
    (output * torch.arange(length)[None, :, None, None] / length).float().sum().backward()  # type: ignore[no-untyped-call]
    return [output.detach(), *(tensor.grad for tensor in tensors if tensor.grad is not None)]


def require_close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert float((mine.float() - other.float()).norm() / other.float().norm()) < 0.02


@pytest.mark.parametrize("first", [0, 12])
def test_packed_rows_are_read_as_in_fp32(first: int) -> None:
    packed = pack(GROUPS)
    assert packed.shortest_prompt == 12
    length = packed.ids_BL.shape[1]
    require_close(read(packed, length, torch.bfloat16, first), read(packed, length, torch.float32))


@pytest.mark.parametrize("length", [7, SHORT, SHORT + 1])
def test_rows_without_a_mask_are_causal(length: int) -> None:
    ours = read(None, length, torch.bfloat16)
    query, key, value = inputs(length, torch.float32)
    keys, values = (tensor.repeat_interleave(HEADS // KEY_HEADS, dim=1) for tensor in (key, value))
    expected = scaled_dot_product_attention(query, keys, values, is_causal=True).transpose(1, 2)
    require_close(ours[:1], [expected.detach()])
    require_close(ours, read(None, length, torch.float32))


@pytest.mark.parametrize(("length", "equal"), [(SHORT, False), (SHORT + 1, True)])
def test_longer_rows_are_read_by_fused_attention(length: int, equal: bool) -> None:
    query, key, value = inputs(length, torch.bfloat16)
    quick, fused = (
        attention(MODULE, query, key, value, None, scaling=SIZE**-0.5)[0]
        for attention in (quick_attention, split_attention)
    )
    assert torch.equal(quick, fused) == equal
