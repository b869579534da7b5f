"""The prompts of an update, compared with the full definition: a permutation for every row."""

import random
from collections import Counter

import pytest

from train.rl.sampling import prompt_indices, refill_indices

GOLDEN = [5, 9, 1, 6, 4, 8, 2, 3, 7, 0, 0, 9]


def by_definition(name: str, count: int, update: int, batch_size: int, seed: int) -> list[int]:
    """Compute the prompts row by row: draw the permutation of the pass, and take the row's place in it."""
    chosen = []
    for position in range(update * batch_size, (update + 1) * batch_size):
        turn, place = divmod(position, count)
        chosen.append(random.Random(f"{name} {seed} {turn}").sample(range(count), count)[place])
    return chosen


@pytest.mark.parametrize("count", [1, 2, 5, 64, 100])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_prompts_of_an_update_follow_the_definition_in_any_order_of_calls(
    count: int, batch_size: int, seed: int
) -> None:
    """Some lengths are equal, so ties matter; and a batch may span several passes."""
    lengths = [1 + number % 3 for number in range(count)]
    for update in (0, 1, 2, 9, 1, 10, 0):
        taken = sorted(by_definition("prompts", count, update, batch_size, seed), key=lengths.__getitem__)
        for responses in (1, 2):
            asked = prompt_indices(lengths, update, batch_size, responses, seed)
            assert asked == [number for number in taken for _ in range(responses)]


def test_the_order_is_fixed() -> None:
    assert [number for update in range(3) for number in prompt_indices([1] * 10, update, 4, 1, seed=0)] == GOLDEN


def test_a_million_prompts_cost_one_permutation_per_pass() -> None:
    """Drawing a permutation for each prompt would make a thousand updates of 128 take most of a day."""
    lengths = [1] * 10**6
    assert all(len(prompt_indices(lengths, update, 128, 1, seed=0)) == 128 for update in range(1000))


def test_a_refill_takes_new_prompts_first_and_then_those_that_are_not_in_the_batch() -> None:
    lengths, drawn, kept = [6, 5, 4, 3, 2, 1], Counter({0: 4, 1: 4, 2: 8, 3: 4}), {0, 3}

    def refill(prompts: int, turn: str = "turn 1") -> list[int]:
        return refill_indices(lengths, turn, prompts, 1, drawn, kept)

    assert refill(2) == [5, 4], "the shortest first"
    assert refill(3) == [5, 4, 1], "drawn once, and not kept"
    assert refill(4) == [5, 4, 2, 1]
    assert refill(6) == [5, 4, 3, 2, 1, 0]
    assert sorted(refill(8)) == [0, 1, 2, 3, 4, 4, 5, 5]
    assert {refill(1, f"turn {turn}")[0] for turn in range(20)} == {4, 5}
    assert [refill(1, f"turn {turn}") for turn in range(20)] == [refill(1, f"turn {turn}") for turn in range(20)]
    assert refill_indices(lengths, "turn 1", 2, 3, drawn, kept) == [5, 5, 5, 4, 4, 4]
