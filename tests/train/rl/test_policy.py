"""Responses come from the model's own distribution, whatever else is read beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retroformer.errors import NotFinite
from tests.train.world import tiny_experiment
from train.base import load_base
from train.rl.policy import drawn, sampled

PAD, END, LENGTH, SEED = 0, 2, 12, 5
PROMPTS = [[1, 9, 8], [1, 9, 8], [1, 9, 8], [1, 7, 6, 5, 4, 3], [1, 9, 8], [1, 9, 8]]


def often_ending(base: Path, folder: Path) -> Any:
    """Return a model whose responses often end early."""
    model = load_base(tiny_experiment(folder, base).train).eval()
    with torch.no_grad():
        model.lm_head.weight[END] *= 4
    return model


def drawn_alone(model: Any, prompt: list[int], uniform_T: Sequence[Tensor]) -> list[int]:
    """Draw a response with the whole text read again for each token."""
    response: list[int] = []
    while len(response) < LENGTH and END not in response:
        logits_1V = model(input_ids=torch.tensor([prompt + response])).logits[:, -1]
        response += drawn(logits_1V, uniform_T[len(response)][None]).tolist()
    return response + [PAD] * (LENGTH - len(response))


@torch.no_grad()
def test_responses_are_those_that_the_model_gives_alone_and_a_prompt_is_read_once(
    tiny_base: Path, workplace: Path
) -> None:
    model, read = often_ending(tiny_base, workplace), list[tuple[int, ...]]()
    torch.manual_seed(SEED)
    uniform_TB = torch.rand(LENGTH, len(PROMPTS), dtype=torch.float64)
    alone = [drawn_alone(model, prompt, list(uniform_TB[:, row])) for row, prompt in enumerate(PROMPTS)]
    model.model.register_forward_pre_hook(
        lambda _, __, given: read.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    torch.manual_seed(SEED)
    together_BT = sampled(model.model, model.lm_head, PROMPTS, LENGTH, PAD, END)
    length = max(row.index(PAD) if PAD in row else LENGTH for row in alone)
    assert together_BT.tolist() == [row[:length] for row in alone]
    # Three prompts that follow each other on different ones, then places for the responses that go on.
    assert read[0] == (3, 6)
    going_on = [sum(END not in row[: step + 1] for row in alone) for step in range(LENGTH)]
    assert len(set(going_on)) > 2
    assert all(going <= rows * columns for going, (rows, columns) in zip(going_on, read[1:], strict=False))
    assert read[-1][0] * read[-1][1] < len(PROMPTS)
    assert len(read) == length


def test_a_step_copies_no_keys_of_earlier_ones(tiny_base: Path, workplace: Path) -> None:
    model, places = often_ending(tiny_base, workplace), list[int]()

    def note(_: Any, __: Any, given: dict[str, Any], *___: Any) -> None:
        places.append(given["past_key_values"].layers[0].keys.data_ptr())

    model.model.register_forward_hook(note, with_kwargs=True)
    sampled(model.model, model.lm_head, PROMPTS, LENGTH, PAD, ())
    assert len(places) == LENGTH
    assert len(set(places[1:])) == 1


def test_tokens_are_drawn_with_their_probabilities() -> None:
    probabilities_V = torch.tensor([0.0, 0.5, 0.2, 0.0, 0.29, 0.01])
    uniform_B = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts_V = drawn(probabilities_V.log().expand(20_000, -1), uniform_B).bincount(minlength=6)
    possible_V = probabilities_V > 0
    assert counts_V[~possible_V].sum() == 0
    expected_V = 20_000 * probabilities_V[possible_V]
    chi_square = float(((counts_V[possible_V] - expected_V).square() / expected_V).sum())
    # The value that three degrees of freedom exceed in one of a thousand samples.
    assert chi_square < 16.3


def test_the_smallest_and_the_largest_number_draw_the_first_and_the_last_possible_token() -> None:
    logits_BV = torch.tensor([-torch.inf, 0.0, 1.0, -torch.inf]).expand(2, -1)
    assert drawn(logits_BV, torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)).tolist() == [1, 2]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_probabilities_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(NotFinite, match="probabilities are infinite or not numbers"):
        drawn(torch.tensor([[0.0, bad]]), torch.tensor([0.5], dtype=torch.float64))
