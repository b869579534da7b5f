"""Divides groups into the batches of a stage, and a batch into micro-batches."""

import random
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from .group import Group


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
