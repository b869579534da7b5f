import torch

from serve.engine.geometry import Geometry, token_budget
from serve.engine.prefixes import BLOCK_TOKENS, PrefixStore
from serve.engine.slots import KeyValueSlots

SMALL = Geometry(layers=2, heads=1, head_size=1, dtype=torch.float32, device=torch.device("cpu"))


def column(*numbers: float) -> torch.Tensor:
    """Return keys or values of the tokens of one row, (1, H, T, D)."""
    return torch.tensor(numbers, dtype=torch.float32).view(1, 1, -1, 1)


def filled(*rows: list[float], budget_tokens: int = 10_000) -> KeyValueSlots:
    """Return rows whose keys are the given numbers and whose values are ten times as large, in both layers."""
    slots = KeyValueSlots(SMALL, budget_tokens)
    slots.reserve(len(rows), max(len(row) for row in rows))
    for index, row in enumerate(rows):
        slots.write(index, torch.stack([torch.stack([column(*row)[0], 10 * column(*row)[0]])] * 2))
    return slots


def keys(slots: KeyValueSlots, row: int) -> list[float]:
    return slots.read(row, 0, slots.lengths[row])[0, 0].flatten().tolist()


def test_a_token_takes_two_numbers_a_layer_and_head() -> None:
    assert SMALL.bytes_per_token == 2 * 2 * 1 * 1 * 4
    assert token_budget(SMALL).running == 1024**3 // 16


def test_new_tokens_are_appended_to_their_rows_in_any_order() -> None:
    slots = filled([1, 2, 3], [4])
    slots.expect([1, 2], order=[1, 0])
    for layer in range(2):
        new = column(5, 6, 7)
        memory, values = slots.update(new, 10 * new, layer)
    slots.advance()
    assert keys(slots, 0) == [1, 2, 3, 7]
    assert keys(slots, 1) == [4, 5, 6]
    assert memory[0].flatten().tolist()[:4] == [1, 2, 3, 7]
    assert values[1].flatten().tolist()[:3] == [40, 50, 60]


def test_a_pass_that_fails_leaves_the_rows_as_they_were() -> None:
    slots = filled([1, 2], [4])
    slots.expect([1, 1], order=[0, 1])
    slots.update(column(8, 9), column(8, 9), layer_index=0)
    assert [keys(slots, row) for row in range(2)] == [[1, 2], [4]]


def test_the_last_row_takes_the_place_of_one_that_leaves() -> None:
    slots = filled([1], [2, 2], [3, 3, 3])
    slots.drop(0)
    assert slots.lengths == [3, 2]
    assert keys(slots, 0) == [3, 3, 3]


def test_growing_keeps_the_contents_and_a_long_row_stays_within_the_budget() -> None:
    slots = filled([1, 2], [3], budget_tokens=1024)
    slots.drop(1)
    slots.reserve(1, 1000)
    assert keys(slots, 0) == [1, 2]
    assert sum(layer.shape[1] * layer.shape[3] for layer in slots._layers) == 2 * 1024


def test_a_prefix_is_found_by_whole_blocks_and_by_adapter() -> None:
    store = PrefixStore(10 * BLOCK_TOKENS)
    tokens = list(range(40))
    slots = filled([float(token) for token in tokens])
    store.remember("a", tokens, lambda start, stop: slots.read(0, start, stop))
    assert len(store) == 32
    assert store.count("a", [*range(20), 99]) == 16
    assert store.count("b", tokens) == 0
    cached = store.longest("a", tokens)
    assert cached is not None
    assert cached[1, 1].flatten().tolist() == [10.0 * token for token in range(32)]


def test_the_least_recently_used_prefix_is_evicted_from_its_end() -> None:
    store = PrefixStore(4 * BLOCK_TOKENS)
    slots = filled([0.0] * 48)
    old, new = [1] * 48, [2] * 32
    store.remember("a", old, lambda start, stop: slots.read(0, start, stop))
    store.remember("a", new, lambda start, stop: slots.read(0, start, stop))
    assert store.count("a", new) == 32
    assert store.count("a", old) == 32
