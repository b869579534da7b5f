from collections import OrderedDict
from collections.abc import Sequence

import torch

from serve.engine.prefixes import BLOCK_TOKENS, BlockNames, Geometry, Prefix, PrefixStore, blocks_to_share

SMALL = Geometry(layers=1, heads=1, head_size=1, dtype=torch.float32, device=torch.device("cpu"))


def names(tokens: Sequence[int], adapter: str = "a") -> list[bytes]:
    return BlockNames(adapter).of(tokens)


def remember(store: PrefixStore, tokens: Sequence[int], kept: Sequence[Prefix] = ()) -> None:
    """Store `tokens` with their own numbers as keys and values."""

    def read(layer: int, start: int, stop: int) -> torch.Tensor:
        return torch.tensor([tokens[start:stop]] * 2, dtype=torch.float32)[:, None, :, None]

    store.remember(names(tokens), read, kept)


def count(store: PrefixStore, tokens: Sequence[int]) -> int:
    """Return the number of tokens that are stored, of those that `tokens` begin with."""
    return store.count(names(tokens)) * BLOCK_TOKENS


def keys(store: PrefixStore, prefix: Prefix) -> list[float]:
    return store.layers[0][0, :, prefix.positions].flatten().tolist()


def text(*numbers: int) -> list[int]:
    """Return a text whose blocks each repeat one of the numbers."""
    return [number for number in numbers for _ in range(BLOCK_TOKENS)]


def test_a_text_that_grows_keeps_the_names_of_its_blocks() -> None:
    growing, tokens = BlockNames("a"), list(range(50))
    assert growing.of(tokens[:20]) == names(tokens)[:1]
    assert growing.of(tokens) == names(tokens)
    assert growing.of(tokens[:32]) == names(tokens)[:2]
    assert set(names(tokens)).isdisjoint(names(tokens, "b"))
    assert set(names(tokens)).isdisjoint(names([1, *tokens[1:]]))


def test_a_prefix_is_looked_up_by_whole_blocks_and_by_adapter() -> None:
    store = PrefixStore(SMALL, 10 * BLOCK_TOKENS)
    tokens = list(range(40))
    remember(store, tokens)
    assert len(store._blocks) == 2
    assert count(store, [*range(20), 99]) == 16
    assert store.count(names(tokens, "b")) == 0
    assert keys(store, store.prefix(names(tokens))) == tokens[:32]
    assert store.prefix([]) == Prefix()


def test_the_least_recently_used_prefix_is_evicted_from_its_end() -> None:
    store = PrefixStore(SMALL, 4 * BLOCK_TOKENS)
    old, new = text(1, 1, 1), text(2, 2)
    remember(store, old)
    remember(store, new)
    assert (count(store, new), count(store, old)) == (32, 32)
    store.prefix(names(old)[:2])
    remember(store, text(3))
    assert (count(store, new), count(store, old), count(store, text(3))) == (16, 32, 16)


def test_a_prefix_that_a_row_reads_is_not_evicted_and_its_place_is_not_used() -> None:
    store = PrefixStore(SMALL, 4 * BLOCK_TOKENS)
    remember(store, text(1, 2))
    prefix = store.prefix(names(text(1, 2)))
    for number in range(10, 20):
        remember(store, text(number, number, number), kept=[prefix])
        assert keys(store, prefix) == text(1, 2)
        assert (count(store, text(1, 2)), count(store, text(*[number] * 3))) == (32, 32)
    assert len(store._blocks) == 4


def test_a_text_longer_than_the_memory_is_stored_from_its_start() -> None:
    store = PrefixStore(SMALL, 3 * BLOCK_TOKENS)
    remember(store, text(1, 2))
    remember(store, text(1, 2, 3, 4, 5))
    assert count(store, text(1, 2, 3, 4, 5)) == 48
    assert keys(store, store.prefix(names(text(1, 2, 3)))) == text(1, 2, 3)


def test_blocks_in_scattered_places_are_read_in_the_order_of_their_text() -> None:
    store = PrefixStore(SMALL, 4 * BLOCK_TOKENS)
    for numbers in ((1,), (2,), (3,), (4,)):
        remember(store, text(*numbers))
    store.prefix(names(text(2)))
    store.prefix(names(text(4)))
    remember(store, text(2, 7, 8))
    prefix = store.prefix(names(text(2, 7, 8)))
    assert list(prefix.blocks) != sorted(prefix.blocks)
    assert keys(store, prefix) == text(2, 7, 8)


class CountingBlocks(OrderedDict[bytes, int]):
    """The store's table of blocks, which counts how often it is asked for a name."""

    lookups = 0

    def __contains__(self, name: object) -> bool:
        self.lookups += 1
        return super().__contains__(name)


def test_the_cost_of_a_lookup_depends_on_neither_the_number_of_prefixes_nor_much_on_the_length() -> None:
    lookups = []
    for others, blocks in ((1, 64), (500, 64), (500, 640)):
        store = PrefixStore(SMALL, 2000 * BLOCK_TOKENS)
        for number in range(others):
            remember(store, text(10_000 + number))
        long = text(*range(blocks))
        remember(store, long)
        store._blocks = counting = CountingBlocks(store._blocks)
        counting.lookups = 0
        assert count(store, [*long, *text(1, 2, 3)]) == len(long)
        lookups.append(counting.lookups)
    assert lookups[0] == lookups[1] <= 8
    assert lookups[2] <= 11


def test_rows_share_the_blocks_that_save_most_reading() -> None:
    own = {letter: names(text(1, 2, 3, 4, ord(letter), 6, 7, 8, 9, 10)) for letter in "abc"}
    other, short = names(text(50, 51)), names(text(1, 2, 3))
    assert blocks_to_share([own["a"]]) == [0]
    assert blocks_to_share([own["a"], own["b"]]) == [0, 0], "64 tokens are not worth a second product"
    assert blocks_to_share([own["a"], other, own["b"], own["c"]]) == [4, 0, 4, 4]
    assert blocks_to_share([own["a"], own["a"], own["b"], short, other]) == [10, 10, 0, 0, 0]
    assert blocks_to_share([own["a"], own["b"], own["a"], own["b"], other]) == [10, 10, 10, 10, 0]
    assert blocks_to_share([short] * 6 + [own["a"], own["a"]]) == [3] * 8
    assert blocks_to_share([]) == []
