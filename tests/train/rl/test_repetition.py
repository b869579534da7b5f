"""Copies and repetitions in texts that are short enough to count by hand."""

from pathlib import Path

import pytest

from retroformer.records import Message
from tests.train.world import tiny_experiment
from train.base import load_tokenizer
from train.data.samples import prompt_ids
from train.rl.alarms import describer, repetition

EXAMPLES = Message(role="system", content="You advise. For example: try the left door before the right one.")
ATTEMPT = Message(role="user", content="Action 1: go to drawer 1\nAction 2: open drawer 1\nIt failed. Advice:")


def test_copies_of_the_attempt_and_of_the_examples_are_counted_separately() -> None:
    texts = ["Open drawer 1. It failed.", "Try the left door.", "Look under the bed, behind the lamp."]
    facts = repetition(texts, [(EXAMPLES, ATTEMPT)] * 3)
    assert facts["copied_from_attempt"] == pytest.approx(1 / 3)
    assert facts["restating"] == pytest.approx(1 / 3)
    assert facts["copied_from_instruction"] == pytest.approx(1 / 3)
    # Words: open drawer 1 it failed try the left door look under bed behind lamp; `the` comes three times.
    assert facts["distinct_1"] == 14 / 16


def test_a_response_restates_if_half_of_it_is_copied() -> None:
    # 2 of 4 n-grams, then 2 of 5.
    half, less = "open drawer 1 it failed so wait", "open drawer 1 it failed so wait here"
    assert [repetition([text], [(ATTEMPT,)])["restating"] for text in (half, less)] == [1.0, 0.0]


def test_a_prompt_of_one_message_has_no_instruction_to_copy() -> None:
    assert repetition(["open drawer 1 it"], [(ATTEMPT,)])["copied_from_instruction"] == 0.0


def test_responses_are_compared_with_their_own_prompts(tiny_base: Path, workplace: Path) -> None:
    tokenizer = load_tokenizer(tiny_experiment(workplace, tiny_base).train)
    prompts = [(EXAMPLES, ATTEMPT), (Message(role="user", content="Nothing to copy here at all."),)]
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    said = [*tokenizer("Open drawer 1. It failed.", add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    describe = describer(tokenizer, prompts, ids)
    assert describe(ids, [said, said])["copied_from_attempt"] == 0.5
    assert describe([ids[1]], [said])["copied_from_attempt"] == 0.0
