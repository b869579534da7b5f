import math
from collections.abc import Sequence

import pytest
import torch

from serve.engine.generation import DecodedText
from serve.engine.sampling import CANDIDATES, SamplingParameters, Step, _choose, choose, probabilities

QUARTERS = torch.tensor([math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)])


def choose_all(logits: torch.Tensor, steps: Sequence[Step]) -> list[tuple[int, float]]:
    """Return the token of each row, with its log-probability."""
    return list(choose(logits, dict(enumerate(steps))).values())


def drawn(sampling: SamplingParameters, count: int = 4000) -> list[float]:
    """Return the fraction of draws of each token."""
    generator = torch.Generator().manual_seed(1)
    step = Step(sampling, generator)
    tokens = torch.tensor([token for token, _ in choose_all(QUARTERS.expand(count, 4), [step] * count)])
    return [float(share) for share in torch.bincount(tokens, minlength=4) / count]


def test_temperature_0_takes_the_likeliest() -> None:
    (chosen,) = choose_all(QUARTERS[None], [Step(SamplingParameters(temperature=0), torch.Generator(), log_prob=True)])
    assert chosen == (0, pytest.approx(math.log(0.5)))


def test_samples_follow_the_distribution() -> None:
    assert drawn(SamplingParameters()) == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.03)


def test_temperature_one_half_squares_the_odds() -> None:
    squares = torch.tensor([0.25, 0.0625, 0.015625, 0.015625]).double()
    (drawn_from,) = probabilities(QUARTERS[None], [SamplingParameters(temperature=0.5)])
    assert drawn_from.tolist() == pytest.approx((squares / squares.sum()).tolist())


def test_top_k_and_top_p_leave_only_the_likeliest() -> None:
    assert drawn(SamplingParameters(top_k=1)) == [1, 0, 0, 0]
    # A mass of 0.5 is below 0.7; 0.5 + 0.25 is not.
    assert drawn(SamplingParameters(top_p=0.7)) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.03)
    assert drawn(SamplingParameters(top_p=0.0)) == [1, 0, 0, 0]


def test_penalties_count_written_tokens() -> None:
    # Token 0 leads token 1 by log 2 = 0.69 and token 2 by log 4 = 1.39.
    def greedy(**penalties: float) -> int:
        step = Step(SamplingParameters(temperature=0, **penalties), torch.Generator(), written=(0, 0))
        return choose_all(QUARTERS[None], [step])[0][0]

    assert greedy(presence_penalty=0.6) == 0
    assert greedy(frequency_penalty=0.4) == 1
    assert greedy(presence_penalty=0.7) == 1


def test_logits_that_differ_in_rounding_give_the_same_samples() -> None:
    noise = 1e-6 * torch.randn(4, generator=torch.Generator().manual_seed(3))
    rounded = [
        [token for token, _ in choose_all((QUARTERS + change).expand(200, 4), [seeded(seed) for seed in range(200)])]
        for change in (torch.zeros(4), noise)
    ]
    assert rounded[0] == rounded[1]


def seeded(seed: int, **sampling: float) -> Step:
    return Step(SamplingParameters(**sampling), torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


def test_rows_with_other_settings_in_the_batch_change_no_token() -> None:
    logits = 3 * torch.randn(6, 5000, generator=torch.Generator().manual_seed(5))
    settings = [{}, {"temperature": 0}, {"top_p": 0.6}, {"top_k": 3}, {"top_k": 40, "top_p": 0.9}, {"temperature": 30}]
    for seed in range(20):
        # As on a GPU, all at once.
        together = _choose(logits, [seeded(seed, **one) for one in settings])
        alone = [choose_all(row[None], [seeded(seed, **one)])[0] for row, one in zip(logits, settings, strict=True)]
        assert [token for token, _ in together] == [token for token, _ in alone]


def test_a_nucleus_beyond_the_likeliest_candidates_is_found() -> None:
    flat = torch.zeros(1, 3 * CANDIDATES)
    (kept,) = probabilities(flat, [SamplingParameters(top_p=0.5)])
    assert int((kept > 0).sum()) == pytest.approx(1.5 * CANDIDATES, abs=1)


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
