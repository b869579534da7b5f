"""Puts a prompt and all its responses into one row, so that the model reads a long prompt once.

    prompt  | response 0 | response 1 | response 2 | padding

Each response attends to the prompt and to itself, and its positions continue those of the prompt. Its hidden states and
gradient therefore equal those of a separate row.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from ..data.samples import Sample, SamplePair

_PROMPT, _PADDING = -1, -2
"""Part numbers of the tokens that belong to no response."""
_ANY_TOKEN = 0
"""Token id used as padding; no other token attends to it."""
BLOCK = 128
"""Side of the blocks of a block mask, in tokens."""
FEW_TOKENS, MOST_PADDING = 4096, 0.1
"""A micro-batch of more tokens than the first is padded by at most the second, a share of it."""


class Group(NamedTuple):
    """A prompt and responses to it, in tokens. No response is empty."""

    prompt: list[int]
    responses: list[list[int]]
    pairs: Sequence[tuple[int, int]] = ()
    """For stages on pairs: numbers of the better and of the worse response."""
    share: float = 1.0
    """Fraction of the prompt's samples or pairs that this group holds; below 1 if the prompt was split."""
    number: int = 0
    """Number of the group among those of its stage."""

    @property
    def length(self) -> int:
        """Number of tokens of the prompt, read once, and of all responses."""
        return len(self.prompt) + sum(map(len, self.responses))

    @property
    def longest(self) -> int:
        """Number of tokens of the prompt with its longest response."""
        return len(self.prompt) + max(map(len, self.responses))

    @property
    def sample_pairs(self) -> list[SamplePair]:
        """The pairs in tokens."""
        return [SamplePair(self.prompt, self.responses[better], self.responses[worse]) for better, worse in self.pairs]

    @property
    def alone(self) -> list["Group"]:
        """A group for each response."""
        return [Group(self.prompt, [response]) for response in self.responses]


class Groups(Sequence[Group]):
    """Samples or pairs on disk, grouped by prompt in the order of first appearance.

    Memory holds their numbers and lengths only. What does not fit into `most_tokens` becomes several groups.
    """

    def __init__(self, rows: Sequence[Sample | SamplePair], most_tokens: int) -> None:
        self._rows, self._parts = rows, list[_GroupRows]()
        of_prompt: dict[bytes, list[_GroupRows]] = {}
        for number, row in enumerate(rows):
            parts = of_prompt.setdefault(_digest(row.prompt_ids), [])
            if not parts or not parts[-1].has_room(row, most_tokens):
                parts.append(_GroupRows(len(row.prompt_ids)))
                self._parts.append(parts[-1])
            parts[-1].add(number, row)
        for parts in of_prompt.values():
            for part in parts:
                part.share = len(part.numbers) / sum(len(other.numbers) for other in parts)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each group, with its prompt once."""
        return [part.length for part in self._parts]

    @property
    def sizes(self) -> list[int]:
        """Number of samples or pairs of each group."""
        return [len(part.numbers) for part in self._parts]

    @property
    def shares(self) -> list[float]:
        """Fraction of its prompt's samples or pairs that each group holds."""
        return [part.share for part in self._parts]

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> list[Group]: ...
    def __getitem__(self, index: int | slice) -> Group | list[Group]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        part = self._parts[index]
        group = group_of([self._rows[number] for number in part.numbers])
        return group._replace(share=part.share, number=index)


class _GroupRows:
    """The numbers of the rows of one group while it is put together."""

    def __init__(self, prompt_length: int) -> None:
        self.length, self.share = prompt_length, 1.0
        self.numbers: list[int] = []
        self._responses: set[bytes] = set()

    def has_room(self, row: Sample | SamplePair, most_tokens: int) -> bool:
        added = sum(len(response) for response in row.responses if _digest(response) not in self._responses)
        return self.length + added <= most_tokens

    def add(self, number: int, row: Sample | SamplePair) -> None:
        self.numbers.append(number)
        for response in row.responses:
            if (digest := _digest(response)) not in self._responses:
                self._responses.add(digest)
                self.length += len(response)


def group_of(rows: Sequence[Sample | SamplePair]) -> Group:
    """Return samples or pairs with the same prompt as a group that holds each response once."""
    numbers: dict[tuple[int, ...], int] = {}
    for row in rows:
        for response in row.responses:
            numbers.setdefault(tuple(response), len(numbers))
    pairs = tuple(
        (numbers[tuple(row.chosen_ids)], numbers[tuple(row.rejected_ids)])
        for row in rows
        if isinstance(row, SamplePair)
    )
    return Group(rows[0].prompt_ids, list(map(list, numbers)), pairs)


def consecutive(prompts: Iterable[list[int]], responses: Iterable[list[int]]) -> list[Group]:
    """Group responses that follow each other on one prompt, in their order; equal responses are kept."""
    groups: list[Group] = []
    for prompt, response in zip(prompts, responses, strict=True):
        if groups and groups[-1].prompt == prompt:
            groups[-1].responses.append(response)
        else:
            groups.append(Group(prompt, [response]))
    return groups


def divided(group: Group, most_tokens: int) -> list[Group]:
    """Divide the responses of a group among groups of at most `most_tokens`, with at least one response each."""
    parts = [Group(group.prompt, [])]
    for response in group.responses:
        if parts[-1].responses and parts[-1].length + len(response) > most_tokens:
            parts.append(Group(group.prompt, []))
        parts[-1].responses.append(response)
    return parts


def _digest(tokens: Sequence[int]) -> bytes:
    return blake2b(repr(tokens).encode(), digest_size=16).digest()


def micro_batches(
    groups: Sequence[Group], most_tokens: int, length: Callable[[Group], int] = attrgetter("length")
) -> list[list[Group]]:
    """Divide groups, in their order, into micro-batches of at most `most_tokens`, counted with padding.

    A group that is longer is alone in its micro-batch. `length` returns the tokens in which a group is read.
    """
    divided: list[list[Group]] = []
    for group in groups:
        last = divided[-1] if divided else []
        lengths = [length(group), *map(length, last)]
        tokens = len(lengths) * max(lengths)
        is_wasteful = tokens > FEW_TOKENS and tokens - sum(lengths) > MOST_PADDING * tokens
        if last and tokens <= most_tokens and not is_wasteful:
            last.append(group)
        else:
            divided.append([group])
    return divided


class Packed(NamedTuple):
    """B groups in rows of L tokens. R: all responses, group after group. N: all their tokens, response by response."""

    ids_BL: Tensor
    positions_BL: Tensor
    part_BL: Tensor
    """Number of the response that a token belongs to, in its row; negative for prompt and padding."""
    row_N: Tensor
    source_N: Tensor
    """Position in its row whose hidden state predicts the token: for a response's first token, the prompt's end."""
    token_N: Tensor
    response_N: Tensor
    """Number of the response among all R."""
    place_N: Tensor
    """Place of the token in its response."""
    row_R: Tensor
    last_R: Tensor
    """Position in its row of a response's last token."""
    longest: int
    """Tokens of the longest prompt with one response."""

    @property
    def responses(self) -> int:
        """R."""
        return len(self.row_R)

    def sees(self, first: int = 0, end: int | None = None) -> Tensor:
        """Return True where token `first` and later ones, before `end`, may attend to a token, (B, rows, L)."""
        part_BL, index_L = self.part_BL, torch.arange(self.part_BL.shape[1], device=self.part_BL.device)
        sees_BRL = part_BL[:, first:end, None] == part_BL[:, None, :]
        sees_BRL |= (part_BL == _PROMPT)[:, None, :]
        sees_BRL &= index_L[first:end, None] >= index_L
        return sees_BRL

    @property
    def shortest_prompt(self) -> int:
        """Length of the shortest prompt: this many first tokens of every row belong to a prompt."""
        return int((self.part_BL == _PROMPT).sum(dim=1).min())

    def dense_mask(self, dtype: torch.dtype, first: int = 0) -> Tensor:
        """Return the rows of `sees` from token `first` on, as numbers to add to attention scores, (B, 1, rows, L)."""
        sees_BRL = self.sees(first)
        mask_BRL = torch.full(sees_BRL.shape, torch.finfo(dtype).min, dtype=dtype, device=sees_BRL.device)
        return mask_BRL.masked_fill_(sees_BRL, 0)[:, None]

    @property
    def in_blocks(self) -> "Packed":
        """The same rows with padding up to whole blocks, of which there are at least two."""
        length = self.part_BL.shape[1]
        missing = max(2 * BLOCK - length, -length % BLOCK)
        return self._replace(
            ids_BL=pad(self.ids_BL, (0, missing), value=_ANY_TOKEN),
            positions_BL=pad(self.positions_BL, (0, missing)),
            part_BL=pad(self.part_BL, (0, missing), value=_PADDING),
        )

    def block_mask(self) -> Any:
        """Return `sees` for flex attention, which skips blocks without any True; the rows are whole blocks.

        It is made from one row of blocks at a time: torch's own function needs eight bytes for each pair of tokens.
        """
        from torch.nn.attention.flex_attention import BlockMask

        part_BL = self.part_BL

        def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            same = (part_BL[batch, query] == part_BL[batch, key]) | (part_BL[batch, key] == _PROMPT)
            return same & (query >= key)

        shares = list[Tensor]()
        for first in range(0, part_BL.shape[1], BLOCK):
            seen_BRKR = torch.unflatten(self.sees(first, first + BLOCK), 2, (-1, BLOCK))
            shares.append(seen_BRKR.float().mean(dim=(1, 3)))
        share_BQK = torch.stack(shares, dim=1)
        partly, fully = (share_BQK > 0) & (share_BQK < 1), share_BQK == 1
        return BlockMask.from_kv_blocks(*_places(partly), *_places(fully), BLOCK_SIZE=BLOCK, mask_mod=attends)

    def by_response(self, values_N: Tensor, length: int) -> Tensor:
        """Return values of tokens by response and place, 0 after the end of a response, (R, `length`)."""
        by_response_RT = values_N.new_zeros(self.responses, length)
        return by_response_RT.index_put((self.response_N, self.place_N), values_N)

    def sums(self, values_N: Tensor) -> Tensor:
        """Return the sum over the tokens of each response, (R,)."""
        return values_N.new_zeros(self.responses).index_add(0, self.response_N, values_N)

    def to(self, device: torch.device) -> "Packed":
        """Return the same rows on this device."""
        *tensors, longest = self
        return Packed._make([*(part.to(device) for part in tensors if isinstance(part, Tensor)), longest])


def _places(chosen_BQK: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks of each row are chosen, (B, 1, Q), and their places before those of others."""
    order_BQK = chosen_BQK.int().argsort(dim=2, descending=True, stable=True)
    return chosen_BQK.sum(dim=2, dtype=torch.int32)[:, None], order_BQK.int()[:, None]


def pack(groups: Sequence[Group]) -> Packed:
    """Put each group into a row, equal responses once; rows are padded on the right."""
    rows, positions, parts = list[Tensor](), list[Tensor](), list[Tensor]()
    columns: list[tuple[int, int, int, int, int]] = []
    ends: list[tuple[int, int]] = []
    for row, group in enumerate(groups):
        ids, start = list(group.prompt), len(group.prompt)
        places, numbers = list(range(start)), [_PROMPT] * start
        firsts: dict[tuple[int, ...], int] = {}
        for number, response in enumerate(group.responses):
            first = firsts.setdefault(tuple(response), len(ids))
            sources = [start - 1, *range(first, first + len(response) - 1)]
            columns += [
                (row, source, token, len(ends), place)
                for place, (source, token) in enumerate(zip(sources, response, strict=True))
            ]
            ends.append((row, first + len(response) - 1))
            if first == len(ids):
                ids += response
                places += range(start, start + len(response))
                numbers += [number] * len(response)
        rows.append(torch.tensor(ids))
        positions.append(torch.tensor(places))
        parts.append(torch.tensor(numbers))
    row_N, source_N, token_N, response_N, place_N = torch.tensor(columns).unbind(dim=1)
    row_R, last_R = torch.tensor(ends).unbind(dim=1)
    return Packed(
        pad_sequence(rows, batch_first=True, padding_value=_ANY_TOKEN),
        pad_sequence(positions, batch_first=True),
        pad_sequence(parts, batch_first=True, padding_value=_PADDING),
        row_N,
        source_N,
        token_N,
        response_N,
        place_N,
        row_R,
        last_R,
        max(group.longest for group in groups),
    )
