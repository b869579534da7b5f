from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from serve.engine import attention
from serve.engine.attention import PackedBatch, attend, pack_batch
from serve.engine.prefixes import BlockNames, Geometry, Prefix, PrefixStore

HEADS, SHARED, SIZE = 4, 2, 8
LENGTHS, COUNTS, ORDER = [3, 0, 5], [1, 4, 2], [2, 0, 1]


def attended_by(tokens: PackedBatch, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    attended, _ = attend(SimpleNamespace(layer_idx=0), queries, keys, values, None, batch=tokens, scaling=0.5)
    return attended[0]


def expected(query_HD: torch.Tensor, keys_HND: torch.Tensor, values_HND: torch.Tensor) -> torch.Tensor:
    visible_keys, visible_values = (memory.repeat_interleave(SHARED, 0) for memory in (keys_HND, values_HND))
    return scaled_dot_product_attention(query_HD[:, None], visible_keys, visible_values, scale=0.5)[:, 0]


def test_a_token_attends_to_its_own_row_up_to_itself_only() -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 4, HEADS // SHARED, 12, SIZE)
    queries = torch.randn(1, HEADS, sum(COUNTS), SIZE)
    tokens = pack_batch(LENGTHS, COUNTS, ORDER, [Prefix()] * 3, [], like=queries)
    assert tokens.rows.tolist() == [2, 2, 0, 1, 1, 1, 1]
    assert tokens.positions.tolist() == tokens.own_positions.tolist() == [5, 6, 3, 0, 1, 2, 3]
    assert tokens.last.tolist() == [2, 6, 1]
    attended = attended_by(tokens, queries, keys, values)
    for place, (row, position) in enumerate(zip(tokens.rows.tolist(), tokens.positions.tolist(), strict=True)):
        reference = expected(queries[0, :, place], keys[row, :, : position + 1], values[row, :, : position + 1])
        torch.testing.assert_close(attended[place], reference)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_device_whose_kernels_return_no_logs_attends_alike(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 4, HEADS // SHARED, 12, SIZE, dtype=dtype)
    queries = torch.randn(1, HEADS, sum(COUNTS), SIZE, dtype=dtype)
    tokens = pack_batch(LENGTHS, COUNTS, ORDER, [Prefix()] * 3, [], like=queries)
    on_cpu = attended_by(tokens, queries, keys, values)
    monkeypatch.setattr(attention, "can_share", lambda device: False)
    torch.testing.assert_close(attended_by(tokens, queries, keys, values), on_cpu)


@pytest.mark.parametrize("scattered", [False, True])
def test_a_token_attends_to_the_stored_prefix_of_its_row_and_then_to_its_own_row(scattered: bool) -> None:
    torch.manual_seed(0)
    store = PrefixStore(Geometry(1, HEADS // SHARED, SIZE, torch.float32, torch.device("cpu")), 128)
    texts = [[1] * 48, [2] * 32]
    contents = {text[0]: torch.randn(2, HEADS // SHARED, len(text), SIZE) for text in texts}
    for stored_tokens in (16, 48) if scattered else (48,):
        for text in texts:
            names = BlockNames("a").of(text[:stored_tokens])
            store.remember(names, lambda _, start, stop, text=text: contents[text[0]][:, :, start:stop], [])
    long, short = (store.prefix(BlockNames("a").of(text)) for text in ([1] * 48, [2] * 32))
    assert isinstance(long.positions, torch.Tensor) is scattered
    prefixes, lengths, counts, order = [long, Prefix(), short, long], [50, 3, 32, 48], [1, 2, 3, 2], [1, 0, 3, 2]
    keys, values = torch.randn(2, 5, HEADS // SHARED, 12, SIZE)
    queries = torch.randn(1, HEADS, sum(counts), SIZE)
    tokens = pack_batch(lengths, counts, order, prefixes, store.layers, like=queries)
    assert tokens.own_positions.tolist() == [3, 4, 2, 0, 1, 0, 1, 2]
    assert tokens.shared == ((slice(2, 5), long), (slice(5, 8), short))
    attended = attended_by(tokens, queries, keys, values)
    for place, (row, own) in enumerate(zip(tokens.rows.tolist(), tokens.own_positions.tolist(), strict=True)):
        before = {0: contents[1], 1: torch.empty(2, HEADS // SHARED, 0, SIZE), 2: contents[2], 3: contents[1]}[row]
        own_keys, own_values = keys[row, :, : own + 1], values[row, :, : own + 1]
        reference = expected(
            queries[0, :, place], torch.cat((before[0], own_keys), 1), torch.cat((before[1], own_values), 1)
        )
        torch.testing.assert_close(attended[place], reference)
