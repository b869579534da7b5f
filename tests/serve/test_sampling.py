import math
from collections.abc import Sequence

import pytest
import torch

from serve.engine.generation import DecodedText
from serve.engine.sampling import SamplingParameters, choose, probabilities

QUARTERS = torch.tensor([math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)])


def drawn(sampling: SamplingParameters, count: int = 4000) -> list[float]:
    """Return the fraction of draws of each token."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.tensor([choose(QUARTERS, sampling, (), generator) for _ in range(count)])
    return [float(share) for share in torch.bincount(tokens, minlength=4) / count]


def test_temperature_0_takes_the_likeliest() -> None:
    assert choose(QUARTERS, SamplingParameters(temperature=0), (), torch.Generator()) == 0


def test_samples_follow_the_distribution() -> None:
    assert drawn(SamplingParameters()) == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.03)


def test_temperature_one_half_squares_the_odds() -> None:
    squares = torch.tensor([0.25, 0.0625, 0.015625, 0.015625]).double()
    assert probabilities(QUARTERS, SamplingParameters(temperature=0.5)) == pytest.approx(
        (squares / squares.sum()).tolist()
    )


def test_top_k_and_top_p_leave_only_the_likeliest() -> None:
    assert drawn(SamplingParameters(top_k=1)) == [1, 0, 0, 0]
    # A mass of 0.5 is below 0.7; 0.5 + 0.25 is not.
    assert drawn(SamplingParameters(top_p=0.7)) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.03)
    assert drawn(SamplingParameters(top_p=0.0)) == [1, 0, 0, 0]


def test_penalties_count_written_tokens() -> None:
    # Token 0 leads token 1 by log 2 = 0.69 and token 2 by log 4 = 1.39.
    def greedy(**penalties: float) -> int:
        return choose(QUARTERS, SamplingParameters(temperature=0, **penalties), (0, 0), torch.Generator())

    assert greedy(presence_penalty=0.6) == 0
    assert greedy(frequency_penalty=0.4) == 1
    assert greedy(presence_penalty=0.7) == 1


def test_logits_that_differ_in_rounding_give_the_same_samples() -> None:
    noise = 1e-6 * torch.randn(4, generator=torch.Generator().manual_seed(3))
    for seed in range(200):
        first, second = (torch.Generator().manual_seed(seed) for _ in range(2))
        assert choose(QUARTERS, SamplingParameters(), (), first) == choose(
            QUARTERS + noise, SamplingParameters(), (), second
        )


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def spell(tokens: Sequence[int]) -> str:
    """Decode one letter per token."""
    return "".join(LETTERS[token] for token in tokens)


def halves(tokens: Sequence[int]) -> str:
    """Decode with é as the tokens 0 and 1; half of it alone is an unfinished character."""
    return bytes({0: 0xC3, 1: 0xA9, 2: 0x61}[token] for token in tokens).decode(errors="replace")


def write(transcript: DecodedText, text: str) -> None:
    for letter in text:
        transcript.append(LETTERS.index(letter))


def test_text_ends_before_a_stop_string() -> None:
    transcript = DecodedText(spell, ["xyz", "end"])
    write(transcript, "theend")
    assert transcript.stopped
    assert transcript.text(final=True) == "the"


def test_a_possible_stop_string_is_held_back_until_it_is_decided() -> None:
    transcript = DecodedText(spell, ["end"])
    write(transcript, "that")
    assert transcript.text(final=False) == "that"
    write(transcript, "en")
    assert transcript.text(final=False) == "that"
    assert not transcript.stopped
    write(transcript, "t")
    assert transcript.text(final=False) == "thatent"


def test_an_incomplete_character_waits_for_its_remaining_tokens() -> None:
    transcript = DecodedText(halves, [])
    transcript.append(2)
    transcript.append(0)
    assert transcript.text(final=False) == "a"
    transcript.append(1)
    assert transcript.text(final=False) == "aé"


def test_an_incomplete_character_at_the_end_becomes_a_replacement_character() -> None:
    transcript = DecodedText(halves, [])
    transcript.append(2)
    transcript.append(0)
    transcript.finish()
    assert transcript.text(final=True) == "a\ufffd"
