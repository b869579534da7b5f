"""Constrained choice: its tree of tokens and its sampling."""

import math
from collections.abc import Sequence

import pytest
import torch

from serve.engine.sampling import Choices, SamplingParameters, Step, choose

END = 0
EIGHTHS = torch.tensor([math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)])


def test_only_tokens_that_continue_one_of_the_texts_are_allowed() -> None:
    tree = Choices([[3, 1, 0], [3, 2, 0], [5, 0]])
    assert tree.allowed == [3, 5]
    tree.write(3)
    assert tree.allowed == [1, 2]
    tree.write(2)
    assert tree.allowed == [0]
    tree.write(0)
    assert tree.allowed == []


def test_a_choice_that_is_a_prefix_of_another_may_end_or_continue() -> None:
    tree = Choices([[1, 2, END], [1, END]])
    tree.write(1)
    assert tree.allowed == [END, 2]


def choose_of_two(sampling: SamplingParameters, written: Sequence[int] = (), count: int = 1) -> list[int]:
    """Return `count` tokens that are 1 or 3."""
    step = Step(sampling, torch.Generator().manual_seed(1), written, allowed=[1, 3])
    return [token for token, _ in choose(EIGHTHS.expand(count, -1), dict.fromkeys(range(count), step)).values()]


def test_the_likeliest_allowed_token_is_taken_at_temperature_0() -> None:
    assert choose_of_two(SamplingParameters(temperature=0)) == [1]
    # Token 1 leads token 3 by log 2 = 0.69; penalties count written tokens as without choices.
    assert choose_of_two(SamplingParameters(temperature=0, presence_penalty=0.7), written=(1,)) == [3]


def test_samples_follow_the_distribution_of_the_allowed_tokens_alone() -> None:
    tokens = torch.tensor(choose_of_two(SamplingParameters(), count=4000))
    shares = (torch.bincount(tokens, minlength=4) / 4000).tolist()
    # Probabilities 1/4 and 1/8 become 2/3 and 1/3 of the two.
    assert shares == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=0.03)


def test_top_k_and_top_p_choose_among_the_allowed_tokens() -> None:
    for sampling in (SamplingParameters(top_k=1), SamplingParameters(top_p=0.5)):
        assert set(choose_of_two(sampling, count=100)) == {1}
