"""A prompt with several responses to it, in tokens: what every stage of the reflector trains on."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import NamedTuple, overload

from ..data.samples import Sample, SamplePair


class Group(NamedTuple):
    """A prompt and distinct responses to it, in tokens. No response is empty."""

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
        texts = [Sample(self.prompt, response) for response in self.responses]
        return [SamplePair(texts[better], texts[worse]) for better, worse in self.pairs]

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
        (numbers[tuple(row.chosen.response_ids)], numbers[tuple(row.rejected.response_ids)])
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


def training_batches(
    sizes: Sequence[int], lengths: Sequence[int], batch_size: int, epochs: int, seed: int
) -> list[list[int]]:
    """Return the numbers of the groups of each batch, all epochs in one list.

    Groups stay whole, so a batch has about `batch_size` samples. Every epoch is shuffled. Then each stretch of about
    eight batches is sorted by length, so that the groups of a batch have similar lengths and little padding, and the
    batches of the stretch are shuffled. The result depends on the arguments only, so a resumed run continues with the
    batches that the killed run would have seen.

    Args:
        sizes: number of samples of each group.
        lengths: number of tokens of each group.
        batch_size: number of samples of a batch, which the batches have on average.
        epochs: number of passes over the groups.
        seed: seed of the order.
    """
    generator = random.Random(f"order of training {seed}")
    stream = [index for _ in range(epochs) for index in generator.sample(range(len(sizes)), len(sizes))]
    batches: list[list[int]] = []
    for stretch in _cut(stream, sizes, 8 * batch_size):
        by_length = sorted(stretch, key=lengths.__getitem__)
        of_stretch = list(_cut(by_length, sizes, batch_size))
        generator.shuffle(of_stretch)
        batches += of_stretch
    return batches


def _cut(numbers: Sequence[int], sizes: Sequence[int], size: int) -> Iterator[list[int]]:
    """Cut `numbers` into parts whose total size is as close to `size` as possible."""
    part: list[int] = []
    held = 0
    for number in numbers:
        if part and held + sizes[number] - size > size - held:
            yield part
            part, held = [], 0
        part.append(number)
        held += sizes[number]
    if part:
        yield part


def micro_batches(
    groups: Sequence[Group], most_tokens: int, length: Callable[[Group], int] = attrgetter("length")
) -> list[list[Group]]:
    """Divide groups, in their order, into micro-batches of at most `most_tokens`, counted with padding.

    A group that is longer is alone in its micro-batch. `length` returns the tokens in which a group is read.
    """
    divided: list[list[Group]] = []
    for group in groups:
        last = divided[-1] if divided else []
        if last and (len(last) + 1) * max(length(group), *map(length, last)) <= most_tokens:
            last.append(group)
        else:
            divided.append([group])
    return divided
