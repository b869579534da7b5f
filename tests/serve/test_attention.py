import torch
from torch.nn.functional import scaled_dot_product_attention

from serve.engine.attention import attend, line

HEADS, SHARED, SIZE = 4, 2, 8


def test_a_token_attends_to_its_own_row_up_to_itself_only() -> None:
    torch.manual_seed(0)
    lengths, counts, order = [3, 0, 5], [1, 4, 2], [2, 0, 1]
    keys, values = torch.randn(2, 4, HEADS // SHARED, 12, SIZE)
    queries = torch.randn(1, HEADS, sum(counts), SIZE)
    tokens = line(lengths, counts, order, like=queries)
    assert tokens.rows.tolist() == [2, 2, 0, 1, 1, 1, 1]
    assert tokens.positions.tolist() == [5, 6, 3, 0, 1, 2, 3]
    assert tokens.last.tolist() == [2, 6, 1]
    attended, _ = attend(None, queries, keys, values, None, line=tokens, scaling=0.5)
    for place, (row, position) in enumerate(zip(tokens.rows.tolist(), tokens.positions.tolist(), strict=True)):
        visible_keys, visible_values = (
            memory[row, :, : position + 1].repeat_interleave(SHARED, 0) for memory in (keys, values)
        )
        expected = scaled_dot_product_attention(queries[0, :, place, None], visible_keys, visible_values, scale=0.5)
        torch.testing.assert_close(attended[0, place], expected[:, 0])
