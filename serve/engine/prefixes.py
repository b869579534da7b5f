"""Prefix cache: keys and values of earlier prompts, so that a shared prefix is computed only once."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import torch

BLOCK_TOKENS = 16


class PrefixStore:
    """Blocks of tokens with their keys and values; the least recently used block is evicted first.

    A block's name is a hash of its adapter and of all tokens up to its end, so texts with a common prefix share its
    blocks, and a block is found only after those that it depends on.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of cached tokens."""
        return len(self._blocks) * BLOCK_TOKENS

    def count(self, adapter: str, tokens: Sequence[int]) -> int:
        """Return the length of the longest cached prefix of `tokens`."""
        return len(self._cached(adapter, tokens)) * BLOCK_TOKENS

    def longest(self, adapter: str, tokens: Sequence[int]) -> torch.Tensor | None:
        """Return keys and values (L, 2, H, N, D) of the longest cached prefix; None without one."""
        names = self._cached(adapter, tokens)
        self._touch(names)
        return torch.cat([self._blocks[name] for name in names], dim=3) if names else None

    def remember(self, adapter: str, tokens: Sequence[int], read: Callable[[int, int], torch.Tensor]) -> None:
        """Cache all full blocks of `tokens`; `read(start, stop)` copies the keys and values of new blocks."""
        names = list(_block_names(adapter, tokens))[: self._capacity]
        for index, name in enumerate(names):
            if name not in self._blocks:
                self._blocks[name] = read(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
        self._touch(names)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def _cached(self, adapter: str, tokens: Sequence[int]) -> list[bytes]:
        names = []
        for name in _block_names(adapter, tokens):
            if name not in self._blocks:
                break
            names.append(name)
        return names

    def _touch(self, names: Sequence[bytes]) -> None:
        # The first block is touched last: a block must never be evicted before those that depend on it.
        for name in reversed(names):
            self._blocks.move_to_end(name)


def _block_names(adapter: str, tokens: Sequence[int]) -> Iterator[bytes]:
    digest = hashlib.blake2b(adapter.encode(), digest_size=16)
    for stop in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        digest.update(array("q", tokens[stop - BLOCK_TOKENS : stop]).tobytes())
        yield digest.digest()
