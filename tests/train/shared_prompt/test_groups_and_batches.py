"""Groups hold each prompt once, and batches hold whole groups in an order that depends on the seed only."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from train.data.samples import Sample, SamplePair
from train.group_trainer import training_batches
from train.pair_split import weights_of_pairs
from train.shared_prompt.packed import Group, Groups, consecutive, divided, group_of, micro_batches, pack
from train.shared_prompt.reading import TOKEN_CHUNK, VOCABULARY_CHUNK, token_readings

ASKED, OTHER = [5, 6, 7], [9]
GOOD, FAIR, BAD = [1, 2], [3], [4, 4, 4]


def test_samples_are_grouped_by_prompt_wherever_they_are() -> None:
    groups = Groups([Sample(ASKED, GOOD), Sample(OTHER, BAD), Sample(ASKED, FAIR)], 100)
    assert list(groups) == [Group(ASKED, [GOOD, FAIR]), Group(OTHER, [BAD], number=1)]
    assert (groups.lengths, groups.sizes) == ([6, 4], [2, 1])


def test_each_text_of_a_failure_is_in_its_row_once_and_all_pairs_are_kept() -> None:
    pairs = [SamplePair(ASKED, GOOD, BAD), SamplePair(ASKED, FAIR, BAD), SamplePair(ASKED, GOOD, FAIR)]
    [group] = Groups(pairs, 100)
    assert group.responses == [GOOD, BAD, FAIR]
    assert group.pairs == ((0, 1), (2, 1), (0, 2))
    assert group.sample_pairs == pairs
    assert (group.length, group.longest, group.share) == (9, 6, 1.0)


def test_a_group_that_a_micro_batch_cannot_hold_is_divided_between_its_pairs() -> None:
    groups = Groups([SamplePair(ASKED, GOOD, BAD), SamplePair(ASKED, GOOD, FAIR), SamplePair(ASKED, FAIR, [8] * 5)], 10)
    assert [group.responses for group in groups] == [[GOOD, BAD, FAIR], [FAIR, [8] * 5]]
    assert [group.share for group in groups] == [pytest.approx(2 / 3), pytest.approx(1 / 3)]
    assert sum(groups.sizes) == 3
    assert groups.lengths == [group.length for group in groups]


def test_a_sample_that_is_too_long_alone_is_a_group_of_its_own() -> None:
    assert [group.responses for group in Groups([Sample(ASKED, GOOD), Sample(ASKED, BAD)], 1)] == [[GOOD], [BAD]]


def test_drawn_responses_are_grouped_while_they_follow_each_other_and_equal_ones_are_kept() -> None:
    groups = consecutive([ASKED, ASKED, OTHER, ASKED], [GOOD, GOOD, BAD, FAIR])
    assert groups == [Group(ASKED, [GOOD, GOOD]), Group(OTHER, [BAD]), Group(ASKED, [FAIR])]
    assert divided(groups[0], 6) == [Group(ASKED, [GOOD]), Group(ASKED, [GOOD])]
    assert divided(groups[0], 7) == [groups[0]]


def test_pairs_of_a_failure_weigh_together_what_the_config_says() -> None:
    one, three = (
        group_of([SamplePair(OTHER, GOOD, BAD)]),
        group_of([SamplePair(ASKED, *two) for two in ((GOOD, BAD), (FAIR, BAD))]),
    )
    batch = [one, three]
    assert weights_of_pairs(batch, batch, "by_failure").tolist() == [0.5, 0.25, 0.25]
    assert weights_of_pairs(batch, batch, "equal").tolist() == pytest.approx([1 / 3] * 3)
    assert weights_of_pairs([three], batch, "by_failure").tolist() == [0.25, 0.25]
    halves = [three._replace(pairs=(number,), share=0.5) for number in three.pairs]
    assert weights_of_pairs([one, *halves], [one, *halves], "by_failure").tolist() == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("sizes", [[1] * 50, [3, 1, 2, 5] * 15, [20] * 5])
def test_every_epoch_has_every_group_once_in_batches_of_about_the_size_asked_for(sizes: list[int]) -> None:
    lengths = [10 + 7 * number % 31 for number in range(len(sizes))]
    batches = training_batches(sizes, lengths, batch_size=8, epochs=3, seed=1)
    assert Counter(number for batch in batches for number in batch) == Counter(list(range(len(sizes))) * 3)
    held = [sum(sizes[number] for number in batch) for batch in batches]
    largest = max(sizes)
    assert all(8 - largest <= size <= max(8 + largest / 2, largest) for size in held[:-1]) or largest > 8
    assert sum(held) / len(held) == pytest.approx(max(8, largest if largest > 8 else 8), rel=0.25)
    assert batches == training_batches(sizes, lengths, batch_size=8, epochs=3, seed=1)
    assert batches != training_batches(sizes, lengths, batch_size=8, epochs=3, seed=2)


def test_batches_of_single_samples_have_exactly_the_size_asked_for() -> None:
    assert [len(batch) for batch in training_batches([1] * 18, [5] * 18, 4, 1, 0)] != []
    assert sorted(len(batch) for batch in training_batches([1] * 18, [5] * 18, 4, 1, 0)) == [2, 4, 4, 4, 4]


def test_the_groups_of_a_batch_have_similar_lengths() -> None:
    lengths = [10 * (number % 8) for number in range(64)]
    batches = training_batches([1] * 64, lengths, 8, 1, 0)
    assert all(len({lengths[number] for number in batch}) == 1 for batch in batches)


def test_micro_batches_hold_at_most_so_many_tokens_with_padding() -> None:
    groups = [Group([1] * length, [[2]]) for length in (3, 4, 4, 9, 20)]
    divided_groups = micro_batches(groups, 15)
    assert [[group.length for group in part] for part in divided_groups] == [[4, 5, 5], [10], [21]]
    assert [group for part in divided_groups for group in part] == groups


def test_a_large_micro_batch_is_padded_by_a_tenth_at_most() -> None:
    """So a budget that fills a card is not spent on padding: here one row of 4,000 tokens and 40 of 1,000 to 1,400."""
    groups = [Group([1] * length, [[2]]) for length in (*range(1000, 1400, 10), 4000)]
    divided_groups = micro_batches(groups, 10**6)
    assert [group for part in divided_groups for group in part] == groups
    read = [(sum(group.length for group in part), len(part) * part[-1].length) for part in divided_groups]
    assert all(tokens >= 0.9 * with_padding for tokens, with_padding in read)
    assert len(divided_groups) == 3


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (1, 11),
        (TOKEN_CHUNK, 11),
        (TOKEN_CHUNK + 1, 11),
        (3 * TOKEN_CHUNK, VOCABULARY_CHUNK),
        (TOKEN_CHUNK + 1, 2 * VOCABULARY_CHUNK + 5),
    ],
)
def test_log_probabilities_and_their_gradient_are_those_of_a_softmax_over_all_words(tokens: int, words: int) -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(6, words, bias=False)
    packed = pack([Group([1], [torch.randint(words, (tokens,)).tolist()])])
    # Logits of about 20 in size, so that a sum of exponentials without its largest one would be lost.
    hidden_NH = (20 * torch.randn(tokens, 6)).requires_grad_()
    weights_N = torch.randn(tokens)
    (token_readings(hidden_NH, packed, head).log_probs_N * weights_N).sum().backward()  # type: ignore[no-untyped-call]
    assert hidden_NH.grad is not None
    ours, hidden_NH.grad = hidden_NH.grad, None
    log_probs_NV = linear(hidden_NH, head.weight.detach()).log_softmax(dim=-1)
    (log_probs_NV.gather(1, packed.token_N[:, None])[:, 0] * weights_N).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(ours, hidden_NH.grad, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        readings = token_readings(hidden_NH, packed, head)
    torch.testing.assert_close(
        readings.entropies_N, -(log_probs_NV.exp() * log_probs_NV).sum(dim=-1).detach(), rtol=1e-4, atol=1e-4
    )


class _Largest(TorchDispatchMode):
    """Notes the largest fp32 tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.elements = max(self.elements, tensor.numel())
        return result


def test_the_head_is_never_copied_as_a_whole() -> None:
    """A vocabulary of 128,000 times a width of 4,096 would take 2 GB in fp32 at every read."""
    head = torch.nn.Linear(64, 4 * VOCABULARY_CHUNK, bias=False, dtype=torch.bfloat16)
    packed = pack([Group([1], [torch.randint(4 * VOCABULARY_CHUNK, (TOKEN_CHUNK,)).tolist()])])
    hidden_NH = torch.randn(TOKEN_CHUNK, 64, requires_grad=True)
    with _Largest() as largest:
        token_readings(hidden_NH, packed, head).log_probs_N.sum().backward()  # type: ignore[no-untyped-call]
    assert TOKEN_CHUNK * 64 < largest.elements <= VOCABULARY_CHUNK * max(64, TOKEN_CHUNK)
