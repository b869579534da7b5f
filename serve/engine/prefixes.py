"""Prefix cache: keys and values of earlier prompts, so that a shared prefix is computed and stored only once.

Shapes: H key-value heads, N tokens, D head size.
"""

import hashlib
import heapq
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import torch

BLOCK_TOKENS = 16
WORTH_SHARING_TOKENS = 128
"""Tokens that a pass must read less, over all rows, before rows read a prefix together."""

KEY_VALUE_BYTES_ON_CPU = 1024**3
PREFIX_BYTES_ON_CPU = 512 * 1024**2

Positions: TypeAlias = slice | torch.Tensor
"""Positions of tokens in a memory: a slice if they are contiguous, so that reading copies nothing."""


@dataclass(frozen=True)
class Geometry:
    """Shape of the keys and values that one token adds to every layer."""

    layers: int
    heads: int
    """Number of key-value heads; there may be more query heads."""
    head_size: int
    dtype: torch.dtype
    device: torch.device

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.heads * self.head_size * self.dtype.itemsize


class TokenBudget(NamedTuple):
    """Number of tokens whose keys and values are kept, for running requests and for prefixes of later ones."""

    running: int
    prefixes: int


def token_budget(geometry: Geometry, gpu_share: float) -> TokenBudget:
    """Return the budget: a fixed amount of memory on a CPU; on a GPU, what the loaded model leaves of this share."""
    budget = KEY_VALUE_BYTES_ON_CPU, PREFIX_BYTES_ON_CPU
    if geometry.device.type == "cuda":
        free_bytes, all_bytes = torch.cuda.mem_get_info(geometry.device)
        left = int(gpu_share * all_bytes) - torch.cuda.memory_allocated(geometry.device)
        usable = max(0, min(left, int(gpu_share * free_bytes)))
        budget = usable * 5 // 7, usable * 2 // 7
    return TokenBudget(*(size // geometry.bytes_per_token for size in budget))


class BlockNames:
    """Names of the full blocks of a growing text: hashes of its adapter and of all tokens up to each block's end.

    Texts with a common prefix share the names of its blocks.
    """

    def __init__(self, adapter: str) -> None:
        self._digest = hashlib.blake2b(adapter.encode(), digest_size=16)
        self._names: list[bytes] = []

    def of(self, tokens: Sequence[int]) -> list[bytes]:
        """Return the names for `tokens`, which extend the tokens of earlier calls or are the start of them."""
        for stop in range(BLOCK_TOKENS * (len(self._names) + 1), len(tokens) + 1, BLOCK_TOKENS):
            self._digest.update(array("q", tokens[stop - BLOCK_TOKENS : stop]).tobytes())
            self._names.append(self._digest.digest())
        return self._names[: len(tokens) // BLOCK_TOKENS]


@dataclass(frozen=True)
class Prefix:
    """Stored tokens that rows can read in place."""

    blocks: tuple[int, ...] = ()
    """Indices of its blocks in the store's memory."""
    positions: Positions = field(default_factory=lambda: slice(0), compare=False)

    @property
    def tokens(self) -> int:
        return len(self.blocks) * BLOCK_TOKENS


class PrefixStore:
    """Blocks of tokens with their keys and values; the least recently used block is evicted first.

    A block is stored only while all blocks before it in its text are. The memory is allocated once.
    """

    def __init__(self, geometry: Geometry, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, int] = OrderedDict()
        self._free: list[int] = []
        self._used = 0
        shape = (2, geometry.heads, self._capacity * BLOCK_TOKENS, geometry.head_size)
        # On a CPU, memory that was never written takes no space.
        self.layers = [torch.empty(shape, dtype=geometry.dtype, device=geometry.device) for _ in range(geometry.layers)]
        """Keys and values of each layer, (2, H, N, D)."""

    def count(self, names: Sequence[bytes]) -> int:
        """Return how many of the blocks, from the first on, are stored."""
        return bisect_left(names, True, key=lambda name: name not in self._blocks)

    def prefix(self, names: Sequence[bytes]) -> Prefix:
        """Return the prefix made of stored blocks; it stays valid while `remember` is given it as `kept`."""
        self._touch(names)
        blocks = tuple(self._blocks[name] for name in names)
        return Prefix(blocks, self._positions_of(blocks))

    def remember(
        self, names: Sequence[bytes], read: Callable[[int, int, int], torch.Tensor], kept: Iterable[Prefix]
    ) -> None:
        """Store the blocks of a text as far as there is room beside the `kept` prefixes.

        `read(layer, start, stop)` returns the keys and values (2, H, N, D) of tokens start..stop.
        """
        stored = self.count(names)
        self._touch(names[:stored])
        in_use = set(chain.from_iterable(prefix.blocks for prefix in kept))
        in_use.update(self._blocks[name] for name in names[:stored])
        blocks = self._allocate(len(names) - stored, in_use)
        positions, start = self._positions_of(blocks), stored * BLOCK_TOKENS
        for index, layer in enumerate(self.layers if blocks else ()):
            layer[:, :, positions] = read(index, start, start + len(blocks) * BLOCK_TOKENS)
        self._blocks.update(zip(names[stored:], blocks, strict=False))
        self._touch(names[: stored + len(blocks)])

    def _allocate(self, count: int, in_use: set[int]) -> list[int]:
        """Return up to `count` free blocks, in ascending order; evict blocks that are not in use to get them."""
        lacking = count - len(self._free) - (self._capacity - self._used)
        evictable = (name for name, block in self._blocks.items() if block not in in_use)
        for name in list(islice(evictable, max(0, lacking))):
            heapq.heappush(self._free, self._blocks.pop(name))
        freed = [heapq.heappop(self._free) for _ in range(min(count, len(self._free)))]
        new = range(self._used, min(self._used + count - len(freed), self._capacity))
        self._used += len(new)
        return [*freed, *new]

    def _touch(self, names: Sequence[bytes]) -> None:
        # The first block is touched last: a block must never be evicted before those that depend on it.
        for name in reversed(names):
            self._blocks.move_to_end(name)

    def _positions_of(self, blocks: Sequence[int]) -> Positions:
        if not blocks:
            return slice(0)
        if blocks[-1] - blocks[0] == len(blocks) - 1 and list(blocks) == sorted(blocks):
            return slice(blocks[0] * BLOCK_TOKENS, (blocks[-1] + 1) * BLOCK_TOKENS)
        starts = torch.tensor(blocks, device=self.layers[0].device) * BLOCK_TOKENS
        return (starts[:, None] + torch.arange(BLOCK_TOKENS, device=starts.device)).flatten()


def common_blocks(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    """Return how many blocks two texts begin with, given their names: equal names follow only equal names."""
    return bisect_left(range(min(len(first), len(second))), True, key=lambda index: first[index] != second[index])


def blocks_to_share(texts: Sequence[Sequence[bytes]]) -> list[int]:
    """Return for each text, given by the names of its stored blocks, how many blocks it reads with other texts.

    The choice saves most reading among those in which texts that agree on some blocks either all share these or split
    where they differ.
    """
    _, counts = _sharing(dict(enumerate(texts)))
    return [counts.get(index, 0) for index in range(len(texts))]


def _sharing(texts: Mapping[int, Sequence[bytes]]) -> tuple[int, dict[int, int]]:
    """Return the number of blocks that need not be read, and how many blocks each text shares if it shares any."""
    first = next(iter(texts.values()), ())
    common = min((common_blocks(first, names) for names in texts.values()), default=0)
    together = (len(texts) - 1) * common
    branches: dict[bytes, dict[int, Sequence[bytes]]] = {}
    for index, names in texts.items():
        if len(names) > common:
            branches.setdefault(names[common], {})[index] = names
    apart = [_sharing(branch) for branch in branches.values() if len(branch) > 1]
    saved = sum(blocks for blocks, _ in apart)
    if together * BLOCK_TOKENS >= WORTH_SHARING_TOKENS and together >= saved:
        return together, dict.fromkeys(texts, common)
    return saved, {index: count for _, counts in apart for index, count in counts.items()}
