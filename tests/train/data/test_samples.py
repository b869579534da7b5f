import pytest

from retroformer.config.sections.train import Train
from retroformer.errors import ConfigError
from retroformer.method.records import Message, PreferencePair
from tests.train.world import BAD, GOOD, prompt
from train.base import load_tokenizer
from train.data.samples import (
    AdviceText,
    prompt_ids,
    require_length,
    response_ids,
    sample_pairs,
    samples,
)

QUESTION = (
    Message(role="system", content="You give advice to a household robot that failed."),
    Message(role="user", content="> go to shelf 12\nshelf 12: mug 1, mug 2\nFailed. Advice:"),
)


def test_training_and_server_tokenise_equally() -> None:
    tokenizer = load_tokenizer(Train())
    turns = [{"role": message.role, "content": message.content} for message in QUESTION]
    served_text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    served_ids = tokenizer(served_text, add_special_tokens=False).input_ids
    [sample] = samples(tokenizer, [AdviceText(QUESTION, "Take mug 2.")])
    assert sample.prompt_ids == served_ids
    assert tokenizer.decode(sample.ids) == served_text + "Take mug 2.<|im_end|>"


def test_tokens_of_a_conversation_are_those_of_its_parts() -> None:
    """No token spans the border between prompt and response, so sampling can produce what training teaches."""
    tokenizer = load_tokenizer(Train())
    turns = [{"role": message.role, "content": message.content} for message in QUESTION]
    answer = {"role": "assistant", "content": "Take mug 2."}
    whole = tokenizer(
        tokenizer.apply_chat_template([*turns, answer], tokenize=False).removesuffix("\n"), add_special_tokens=False
    ).input_ids
    assert prompt_ids(tokenizer, QUESTION) + response_ids(tokenizer, "Take mug 2.") == whole


def test_a_response_ends_with_the_end_of_turn_token() -> None:
    tokenizer = load_tokenizer(Train())
    [sample] = samples(tokenizer, [AdviceText(QUESTION, "Take mug 2.")])
    assert sample.responses == [sample.response_ids]
    assert tokenizer.decode(sample.response_ids[:-1]) == "Take mug 2."
    assert sample.response_ids[-1] == tokenizer.eos_token_id


def test_text_that_was_cut_is_not_taught_as_complete() -> None:
    tokenizer = load_tokenizer(Train())
    whole, cut = samples(tokenizer, [AdviceText(QUESTION, "Take mug", is_cut) for is_cut in (False, True)])
    assert whole.response_ids == [*cut.response_ids, tokenizer.eos_token_id]
    pair = PreferencePair(task_id="a", prompt=QUESTION, chosen="Take", rejected="Go", rejected_is_cut=True, margin=1.0)
    (pair_in_tokens,) = sample_pairs(tokenizer, [pair])
    assert pair_in_tokens.chosen_ids[-1] == tokenizer.eos_token_id
    assert pair_in_tokens.rejected_ids[-1] != tokenizer.eos_token_id


def test_the_same_advice_on_the_same_trajectory_is_one_sample() -> None:
    tokenizer = load_tokenizer(Train())
    texts = [AdviceText(prompt(name), text) for name, text in (("a", GOOD), ("b", GOOD), ("a", GOOD), ("a", BAD))]
    assert len(list(samples(tokenizer, texts))) == 3
    pair = PreferencePair(task_id="a", prompt=prompt("a"), chosen=GOOD, rejected=BAD, margin=1.0)
    assert len(list(sample_pairs(tokenizer, [pair, pair]))) == 1


def test_samples_that_are_too_long_are_refused_with_their_count_and_the_longest() -> None:
    require_length([3, 8], 8, "samples")
    with pytest.raises(ConfigError, match=r"2 of 3 samples are longer than train.max_length=8 .*longest has 90"):
        require_length([9, 8, 90], 8, "samples")
