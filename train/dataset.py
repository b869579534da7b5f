"""Text becomes tokens here, exactly as the server makes them; and samples are put into their order.

Everything is tokenised by us, so no trainer can template, cut or drop anything: the rows that go in are the rows
that are trained on.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateError

from retroformer.errors import ConfigError
from retroformer.records import Message, PreferencePair

Prompt = tuple[Message, ...]
IGNORED = -100
"""The label of positions that carry no loss."""


class Sample(NamedTuple):
    """A prompt and one response to it, in tokens. The response ends with the end-of-turn token."""

    prompt_ids: list[int]
    response_ids: list[int]

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.response_ids

    @property
    def labels(self) -> list[int]:
        """The response's tokens; prompt positions carry no loss."""
        return [IGNORED] * len(self.prompt_ids) + self.response_ids


class SamplePair(NamedTuple):
    """Two responses to one prompt, in tokens."""

    chosen: Sample
    rejected: Sample


def prompt_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """The tokens that the served model sees for a prompt: the template's text, tokenised without further tokens.

    Raises:
        ConfigError: the template refuses the prompt's turns, or is broken.
    """
    messages = [message.model_dump() for message in prompt]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except TemplateError as refusal:
        turns = ", ".join(message.role for message in prompt)
        raise ConfigError(
            f"The chat template of the base model at {tokenizer.name_or_path} refuses a prompt of this run with the "
            f"turns {turns} ({refusal}): put a chat_template.jinja that takes them into that folder, where training "
            "and serving read it, or set train.base_model to another model."
        ) from None
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def response_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a reflection and the token that ends its turn."""
    return [*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id]


def samples(tokenizer: Any, texts: Iterable[tuple[Prompt, str]]) -> list[Sample]:
    """Each different (prompt, text) once, in the order of its first appearance."""
    return list(each_sample(tokenizer, texts))


def each_sample(tokenizer: Any, texts: Iterable[tuple[Prompt, str]]) -> Iterator[Sample]:
    """The same, tokenised one by one."""
    for prompt, text in dict.fromkeys(texts):
        yield Sample(prompt_ids(tokenizer, prompt), response_ids(tokenizer, text))


def sample_pairs(tokenizer: Any, pairs: Iterable[PreferencePair]) -> list[SamplePair]:
    """Each different (prompt, chosen, rejected) once, in the order of its first appearance."""
    return list(each_pair(tokenizer, pairs))


def each_pair(tokenizer: Any, pairs: Iterable[PreferencePair]) -> Iterator[SamplePair]:
    """The same, tokenised one by one."""
    for prompt, chosen, rejected in dict.fromkeys((pair.prompt, pair.chosen, pair.rejected) for pair in pairs):
        asked = prompt_ids(tokenizer, prompt)
        yield SamplePair(
            Sample(asked, response_ids(tokenizer, chosen)), Sample(asked, response_ids(tokenizer, rejected))
        )


def require_length(lengths: Sequence[int], max_length: int, what: str) -> None:
    """Raises ConfigError where a sample is too long: the trainers would cut it, or drop its row, in silence."""
    too_long = [length for length in lengths if length > max_length]
    if too_long:
        raise ConfigError(
            f"{len(too_long)} of {len(lengths)} {what} are longer than train.max_length={max_length} tokens "
            f"(the longest has {max(too_long)}): raise train.max_length, or lower reflector.prompt_characters and "
            "collect again."
        )


def require_rows(found: int, expected: int) -> None:
    """Raises RuntimeError where a trainer changed the number of rows: that would be a bug, and a silent one."""
    if found != expected:
        raise RuntimeError(f"The trainer holds {found} rows of {expected}: it cut or dropped some.")


def order_of_training(lengths: Sequence[int], batch_size: int, epochs: int, seed: int) -> list[int]:
    """Indices of the samples, in the order in which they are trained on, all epochs in one list.

    Every epoch is shuffled. Then stretches of eight batches are sorted by length, so that a batch holds samples of
    about one length and little is computed on padding; then the batches of a stretch are shuffled. The order is a
    function of its arguments alone: a resumed run goes on with the batches that the killed one would have seen.
    """
    generator = random.Random(f"order of training {seed}")
    stream = [index for _ in range(epochs) for index in generator.sample(range(len(lengths)), len(lengths))]
    order: list[int] = []
    for start in range(0, len(stream), stretch := 8 * batch_size):
        by_length = sorted(stream[start : start + stretch], key=lengths.__getitem__)
        batches = [by_length[first : first + batch_size] for first in range(0, len(by_length), batch_size)]
        # A short batch stays last, or every later one would be put together from two lengths.
        short = [batches.pop()] if len(batches[-1]) < batch_size else []
        generator.shuffle(batches)
        order += [index for batch in (*batches, *short) for index in batch]
    return order
