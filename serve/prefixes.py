"""Keys and values of prompts that were seen before, so that a common beginning is computed once."""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

import torch

BLOCK_TOKENS = 16


class PrefixStore:
    """Blocks of tokens with their keys and values. What is least recently used is forgotten first.

    A block's name is a hash of its adapter and of all tokens up to its end, so texts that share a beginning share
    its blocks, and a block can only be found behind those that it depends on.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __len__(self) -> int:
        """Tokens that are kept."""
        return len(self._blocks) * BLOCK_TOKENS

    def count(self, adapter: str, tokens: Sequence[int]) -> int:
        """How many of the first tokens are kept."""
        return len(self._found(adapter, tokens)) * BLOCK_TOKENS

    def longest(self, adapter: str, tokens: Sequence[int]) -> torch.Tensor | None:
        """Keys and values (L, 2, H, N, D) of the longest beginning that is kept; None where there is none."""
        names = self._found(adapter, tokens)
        self._touch(names)
        return torch.cat([self._blocks[name] for name in names], dim=3) if names else None

    def remember(self, adapter: str, tokens: Sequence[int], read: Callable[[int, int], torch.Tensor]) -> None:
        """Keep all full blocks of `tokens`; `read(start, stop)` copies keys and values of those that are new."""
        names = list(_block_names(adapter, tokens))[: self._capacity]
        for index, name in enumerate(names):
            if name not in self._blocks:
                self._blocks[name] = read(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
        self._touch(names)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)

    def _found(self, adapter: str, tokens: Sequence[int]) -> list[bytes]:
        found = []
        for name in _block_names(adapter, tokens):
            if name not in self._blocks:
                break
            found.append(name)
        return found

    def _touch(self, names: Sequence[bytes]) -> None:
        # The first block last: a block that is forgotten must never be one that a kept block depends on.
        for name in reversed(names):
            self._blocks.move_to_end(name)


def _block_names(adapter: str, tokens: Sequence[int]) -> Iterator[bytes]:
    digest = hashlib.blake2b(adapter.encode(), digest_size=16)
    for stop in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        digest.update(array("q", tokens[stop - BLOCK_TOKENS : stop]).tobytes())
        yield digest.digest()
