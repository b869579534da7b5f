"""Test that the experiment's own server decodes the fields that a client encodes among the stop strings."""

import base64

import pytest

from retroformer.endpoint.own_server import choices_field, choices_in, seed_field, seed_in, without_fields

TEXTS = [" go to desk 1\n", "<|seed:3|>", 'quotes " and |> and \\', "ümläut 猫", ""]


def field(content: bytes) -> str:
    return f"<|choices:{base64.urlsafe_b64encode(content).decode()}|>"


def test_encoded_fields_are_decoded_and_removed() -> None:
    stops = ["\n", seed_field(17), choices_field(TEXTS), "end"]
    assert seed_in(stops) == 17
    assert choices_in(stops) == TEXTS
    assert without_fields(stops) == ["\n", "end"]


def test_plain_stop_strings_encode_no_field() -> None:
    assert seed_in(["\n", "seed:3"]) is None
    assert choices_in(["\n", "choices:"]) is None


def test_a_seed_of_more_digits_than_any_seed_has_is_refused() -> None:
    assert seed_in(["<|seed:00000000000000000017|>"]) == 17
    for digits in (21, 5000):
        with pytest.raises(ValueError, match=f"a seed of {digits} digits"):
            seed_in(["\n", f"<|seed:{'9' * digits}|>"])


def test_sixty_actions_take_a_few_thousand_bytes() -> None:
    assert len(choices_field([f" move handtowel {number} to handtowelholder 1\n" for number in range(60)])) < 4_500


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("<|choices:|>", "not base64url of JSON"),
        ("<|choices:go to desk 1|>", "not base64url of JSON"),
        ("<|choices:ü|>", "not base64url of JSON"),
        (field(b'["cut'), "not base64url of JSON"),
        (field(b"\xff"), "not base64url of JSON"),
        (field(b'["\\ud800"]'), "not base64url of JSON"),
        (field(b"[" * 100_000), "not base64url of JSON"),
        (field(b'"go"'), "not a list of texts"),
        (field(b'["go", 1]'), "not a list of texts"),
        (field(b"[]"), "the list is empty"),
    ],
)
def test_choices_that_cannot_be_read_are_refused_with_the_reason(said: str, heard: str) -> None:
    with pytest.raises(ValueError, match=heard):
        choices_in(["\n", said])
