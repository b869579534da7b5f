"""Copies and repetitions in texts short enough to count."""

from pathlib import Path

import pytest

from retroformer.records import Message
from tests.train.world import experiment
from train.base import load_tokenizer
from train.dataset import prompt_ids
from train.repetition import copied, describer, distinct, repetition, runs

EXAMPLES = Message(role="system", content="You advise. For example: try the left door before the right one.")
ATTEMPT = Message(role="user", content="Action 1: go to drawer 1\nAction 2: open drawer 1\nIt failed. Advice:")


def test_runs_are_of_lower_case_words_without_marks() -> None:
    assert runs("Go to: Drawer 1!", 3) == [("go", "to", "drawer"), ("to", "drawer", "1")]
    assert runs("too short", 3) == []


def test_distinct_counts_different_runs_of_the_whole_batch() -> None:
    texts = ["look up", "Look up.", "look down"]
    assert distinct(texts, 1) == 3 / 6  # look, up, down
    assert distinct(texts, 2) == 2 / 3
    assert distinct(["one", ""], 2) == 0.0


def test_a_copy_is_four_words_in_a_row() -> None:
    # Of: go to drawer 1 / to drawer 1 and / drawer 1 and take / 1 and take it, the first alone was there.
    assert copied("Go to drawer 1 and take it.", ATTEMPT.content) == 0.25
    assert copied("go to drawer", ATTEMPT.content) == 0.0
    assert copied("go to drawer 1", ATTEMPT.content, elsewhere="You may go to drawer 1.") == 0.0


def test_copies_of_the_attempt_and_of_the_examples_are_told_apart() -> None:
    texts = ["Open drawer 1. It failed.", "Try the left door.", "Look under the bed, behind the lamp."]
    facts = repetition(texts, [(EXAMPLES, ATTEMPT)] * 3)
    assert facts["copied_from_attempt"] == pytest.approx(1 / 3)
    assert facts["restating"] == pytest.approx(1 / 3)
    assert facts["copied_from_instruction"] == pytest.approx(1 / 3)
    # Words: open drawer 1 it failed try the left door look under bed behind lamp; `the` comes three times.
    assert facts["distinct_1"] == 14 / 16


def test_half_a_copy_restates_and_less_does_not() -> None:
    # 2 of 4 runs, then 2 of 5.
    half, less = "open drawer 1 it failed so wait", "open drawer 1 it failed so wait here"
    assert [repetition([text], [(ATTEMPT,)])["restating"] for text in (half, less)] == [1.0, 0.0]


def test_a_prompt_of_one_message_has_no_instruction_to_copy_from() -> None:
    assert repetition(["open drawer 1 it"], [(ATTEMPT,)])["copied_from_instruction"] == 0.0


def test_tokens_are_read_against_the_prompt_that_they_answer(tiny_base: Path, workplace: Path) -> None:
    tokenizer = load_tokenizer(experiment(workplace, tiny_base).train)
    prompts = [(EXAMPLES, ATTEMPT), (Message(role="user", content="Nothing to copy here at all."),)]
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    said = [*tokenizer("Open drawer 1. It failed.", add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    describe = describer(tokenizer, prompts, ids)
    assert describe(ids, [said, said])["copied_from_attempt"] == 0.5
    assert describe([ids[1]], [said])["copied_from_attempt"] == 0.0
