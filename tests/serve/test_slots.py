from dataclasses import replace

import pytest
import torch

from serve.engine.prefixes import BLOCK_TOKENS, BlockNames, Geometry, Prefix, PrefixStore, token_budget
from serve.engine.slots import GROWTH_TOKENS, KeyValueSlots

SMALL = Geometry(layers=2, heads=1, head_size=1, dtype=torch.float32, device=torch.device("cpu"))
TEXT = list(range(40))
"""A text of two blocks and a half; the key of each token is its number."""


def column(*numbers: float) -> torch.Tensor:
    """Return keys or values of the tokens of one row, (1, H, T, D)."""
    return torch.tensor(numbers, dtype=torch.float32).view(1, 1, -1, 1)


def filled(*rows: list[float], budget_tokens: int = 10_000, cached_tokens: int = 160) -> KeyValueSlots:
    """Return rows whose keys are the given numbers and whose values are ten times as large, in both layers."""
    slots = KeyValueSlots(SMALL, budget_tokens, PrefixStore(SMALL, cached_tokens))
    for row in rows:
        slots.add(Prefix())
        append(slots, len(slots.lengths) - 1, *row)
    return slots


def append(slots: KeyValueSlots, row: int, *numbers: float) -> None:
    """Add tokens to `row` in a pass in which the other rows add a token that is then taken back."""
    counts = [len(numbers) if index == row else 1 for index in range(len(slots.lengths))]
    before = slots.lengths
    _, order = slots.prepare_pass(counts, ["a"] * len(counts))
    new = column(*(number for index in order for number in (numbers if index == row else [0.0])))
    for layer in range(2):
        slots.update(new, 10 * new, layer)
    slots.complete_pass()
    slots.lengths = [length + len(numbers) * (index == row) for index, length in enumerate(before)]


def keys(slots: KeyValueSlots, row: int) -> list[float]:
    return slots.read(row, 0, 0, slots.lengths[row])[0].flatten().tolist()


def remember(store: PrefixStore, slots: KeyValueSlots, row: int, names: list[bytes]) -> None:
    store.remember(names, lambda *where: slots.read(row, *where), kept=slots.prefixes)


def stored(slots: KeyValueSlots) -> Prefix:
    """Store the row 0, which holds `TEXT`, and return its prefix of two blocks."""
    store, names = slots._store, BlockNames("a").of(TEXT)
    remember(store, slots, 0, names)
    return store.prefix(names)


def memory(slots: KeyValueSlots) -> list[int]:
    return [layer.data_ptr() for layer in (*slots._layers, *slots._store.layers)]


def test_a_token_takes_two_numbers_a_layer_and_head() -> None:
    assert SMALL.bytes_per_token == 2 * 2 * 1 * 1 * 4
    assert token_budget(SMALL, 1.0).running == 1024**3 // 16


@pytest.mark.parametrize(
    ("share", "free", "usable"), [(0.5, 96_000, 30_000), (0.5, 40_000, 20_000), (0.85, 100_000, 65_000), (0.1, 90, 0)]
)
def test_a_server_takes_no_more_than_its_share_of_a_card(
    share: float, free: int, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (free, 100_000))
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda _: 20_000)  # The weights.
    on_card = replace(SMALL, device=torch.device("cuda"))
    assert token_budget(on_card, share) == (usable * 5 // 7 // 16, usable * 2 // 7 // 16)


def test_new_tokens_are_appended_to_their_rows_by_adapter() -> None:
    slots = filled([1, 2, 3], [4])
    batch, order = slots.prepare_pass([1, 2], ["b", "a"])
    assert (order, batch.rows.tolist(), batch.positions.tolist()) == ([1, 0], [1, 1, 0], [1, 2, 3])
    for layer in range(2):
        new = column(5, 6, 7)
        cache, values = slots.update(new, 10 * new, layer)
    slots.complete_pass()
    assert keys(slots, 0) == [1, 2, 3, 7]
    assert keys(slots, 1) == [4, 5, 6]
    assert cache[0].flatten().tolist()[:4] == [1, 2, 3, 7]
    assert values[1].flatten().tolist()[:3] == [40, 50, 60]


def test_a_pass_that_fails_leaves_the_rows_as_they_were() -> None:
    slots = filled([1, 2], [4])
    slots.prepare_pass([1, 1], ["a", "a"])
    slots.update(column(8, 9), column(8, 9), layer_index=0)
    assert [keys(slots, row) for row in range(2)] == [[1, 2], [4]]


def test_the_last_row_takes_the_place_of_one_that_leaves() -> None:
    slots = filled([1], [2, 2], [3, 3, 3])
    slots.drop(0)
    assert slots.lengths == [3, 2]
    assert keys(slots, 0) == [3, 3, 3]


def test_a_row_keeps_its_tokens_whichever_of_them_it_reads_in_place() -> None:
    slots = filled([float(token) for token in TEXT])
    whole = stored(slots)
    half = slots._store.prefix(BlockNames("a").of(TEXT[:BLOCK_TOKENS]))
    for prefix in (half, whole, half, Prefix(), whole):
        slots.read_in_place(0, prefix)
        assert slots.prefixes == [prefix]
        assert keys(slots, 0) == TEXT
        append(slots, 0, 99.0)
        assert keys(slots, 0) == [*TEXT, 99]
        slots.lengths = [len(TEXT)]


def test_rows_that_share_a_prefix_hold_only_their_own_tokens() -> None:
    slots = filled([float(token) for token in TEXT])
    prefix = stored(slots)
    slots.read_in_place(0, prefix)
    slots.copy_row(0, 1)
    slots.add(prefix)
    append(slots, 1, 50, 51)
    append(slots, 2, 60)
    assert [keys(slots, row) for row in range(3)] == [TEXT, [*TEXT, 50, 51], [*TEXT[: prefix.tokens], 60]]
    assert [layer[0, 1, 0, :10, 0].tolist() for layer in slots._layers] == [[*TEXT[prefix.tokens :], 50, 51]] * 2
    batch, order = slots.prepare_pass([1, 1, 1], ["a", "a", "a"])
    assert (order, [span for span, _ in batch.shared]) == ([0, 1, 2], [slice(0, 3)])
    assert (batch.positions.tolist(), batch.own_positions.tolist()) == ([40, 42, 33], [8, 10, 1])


def test_later_requests_use_the_memory_of_earlier_ones() -> None:
    slots = filled([1.0] * 60, [2.0] * 60)
    before = memory(slots)
    for number in range(20):
        slots.drop(0)
        slots.add(Prefix())
        append(slots, 1, *[float(number)] * 60)
        text = [number] * 60
        remember(slots._store, slots, 1, BlockNames("a").of(text))
    assert memory(slots) == before


def test_growing_keeps_the_contents_and_a_long_row_stays_within_the_budget() -> None:
    slots = filled([1, 2], [3], budget_tokens=1024)
    slots.drop(1)
    append(slots, 0, *[5.0] * 998)
    assert keys(slots, 0) == [1, 2, *[5] * 998]
    assert taken(slots) == 1024


def test_many_rows_after_a_long_row_stay_within_the_budget() -> None:
    slots = filled([1.0] * 1000, budget_tokens=1024)
    slots.drop(0)
    for row in range(4):
        slots.add(Prefix())
        append(slots, row, float(row))
    assert [keys(slots, row) for row in range(4)] == [[0], [1], [2], [3]]
    assert taken(slots) == 4 * GROWTH_TOKENS


def taken(slots: KeyValueSlots) -> int:
    """Return the number of tokens that its memory has room for."""
    (tokens,) = {layer.shape[1] * layer.shape[3] for layer in slots._layers}
    return tokens
