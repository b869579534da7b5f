"""Plain attention on a CPU gives what fused attention gives, and flex attention compiles for few forms of rows."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaModel

from retroformer.errors import ConfigError
from train.plan.rehearsal import LiveBytes
from train.shared_prompt import attention
from train.shared_prompt.attention import (
    SHORT,
    SPLIT,
    flex_attention,
    quick_attention,
    register_attention,
    split_attention,
)
from train.shared_prompt.packed import Group, Packed, pack
from train.shared_prompt.reading import hidden_states

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
    attend = quick_attention if dtype == torch.bfloat16 else split_attention
    output, _ = attend(MODULE, query, key, value, mask, scaling=SIZE**-0.5, dropout=0.0)
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
        attend(MODULE, query, key, value, None, scaling=SIZE**-0.5)[0] for attend in (quick_attention, split_attention)
    )
    assert torch.equal(quick, fused) == equal


def test_a_mask_takes_no_memory_for_pairs_of_tokens_of_the_prompt() -> None:
    packed = pack([Group(list(range(3800)), [[1] * 50] * 2 + [[2] * 100])])
    length = packed.ids_BL.shape[1]
    with LiveBytes() as live:
        packed.dense_mask(torch.bfloat16, packed.shortest_prompt)
    assert live.peak < 5 * (length - 3800) * length
    with LiveBytes() as live:
        packed.in_blocks.block_mask()
    assert live.peak < length * length // 4


def test_a_model_gets_a_mask_for_the_responses_alone() -> None:
    register_attention()
    trunk = LlamaModel(LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1))
    trunk.config._attn_implementation = SPLIT
    shapes = list[torch.Size]()
    trunk.register_forward_pre_hook(
        lambda _, __, given: shapes.append(given["attention_mask"].shape),
        with_kwargs=True,
    )
    hidden_states(trunk, pack(GROUPS))
    assert shapes == [(2, 1, 25 - 12, 25)]


@pytest.fixture
def compiled() -> Iterator[Any]:
    """Counts of what torch has compiled for flex attention, traced as for a GPU and then run without a compiler."""
    torch.compiler.set_default_backend("eager")
    torch.compiler.reset()
    attention._compiled_flex_attention.cache_clear()
    counters.clear()
    yield counters["stats"]
    attention._compiled_flex_attention.cache_clear()
    torch.compiler.reset()
    torch.compiler.set_default_backend(None)


def flex_outputs(packed: Packed) -> tuple[Tensor, Tensor]:
    """Return the outputs of flex attention and of attention in two parts for all tokens but padding."""
    blocks, length = packed.in_blocks, packed.ids_BL.shape[1]
    shapes = [(len(packed.ids_BL), heads, blocks.ids_BL.shape[1], SIZE) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
    whole = [torch.randn(shape) for shape in shapes]
    masks = blocks.block_mask(), packed.dense_mask(torch.float32)
    with torch.no_grad():
        flex, _ = flex_attention(MODULE, *whole, masks[0], scaling=SIZE**-0.5)
        split, _ = split_attention(MODULE, *(part[:, :, :length] for part in whole), masks[1], scaling=SIZE**-0.5)
    return flex[:, :length], split


def test_flex_attention_gives_what_the_split_one_gives_with_few_compilations(compiled: Any) -> None:
    for length in (5, 150, 300, 700):
        group = Group(list(range(length)), [[1, 2, 3], [4] * 40])
        for groups in ([group], [group, GROUPS[0]], [*GROUPS, group]):
            torch.testing.assert_close(*flex_outputs(pack(groups)), atol=1e-5, rtol=1e-5)
    assert compiled["unique_graphs"] <= 4


def test_rows_beyond_the_limit_of_compilations_are_an_error(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MOST_COMPILATIONS", 1)
    flex_outputs(pack(GROUPS[:1]))
    with pytest.raises(ConfigError, match=r"set train\.attention=split"):
        flex_outputs(pack(GROUPS))
