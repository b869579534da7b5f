"""Tokenises prompts and responses exactly as the server does.

Trainers get tokens, so they cannot apply a template, cut or drop anything: they train on the rows that they are given.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from jinja2 import TemplateError

from retroformer.errors import ConfigError
from retroformer.method.rating import Rating
from retroformer.method.records import DrawnToken, Message, PreferencePair
from retroformer.models.prompt_template import encode, mark, prompt_text

Prompt = tuple[Message, ...]


class AdviceText(NamedTuple):
    """Advice to imitate, with the reflector's prompt."""

    prompt: Prompt
    text: str
    is_cut: bool = False
    """True if the text was cut at the limit of tokens, so that its last token is not followed by an end of turn."""


IGNORED = -100
"""Label of positions without loss."""


class Sample(NamedTuple):
    """A prompt and one response to it, in tokens. The response ends with the end-of-turn token unless it was cut."""

    prompt_ids: list[int]
    response_ids: list[int]

    @property
    def ids(self) -> list[int]:
        return self.prompt_ids + self.response_ids

    @property
    def responses(self) -> list[list[int]]:
        """The only response."""
        return [self.response_ids]


class SamplePair(NamedTuple):
    """Two responses to one prompt, in tokens."""

    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]

    @property
    def responses(self) -> list[list[int]]:
        """The better response, and the worse."""
        return [self.chosen_ids, self.rejected_ids]


def prompt_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Tokenise a prompt as the served model sees it: the chat template's text, without further special tokens.

    Raises:
        ConfigError: the template refuses the prompt's turns, or is broken.
    """
    messages = [message.model_dump() for message in prompt]
    try:
        return encode(tokenizer, prompt_text(tokenizer, messages))
    except TemplateError as refusal:
        turns = ", ".join(message.role for message in prompt)
        raise ConfigError(
            f"The chat template of the base model at {tokenizer.name_or_path} refuses a prompt of this run with the "
            f"turns {turns} ({refusal}): put a chat_template.jinja that takes them into that folder, where training "
            "and serving read it, or set train.base_model to another model."
        ) from None


def response_ids(tokenizer: Any, text: str, is_cut: bool = False) -> list[int]:
    """Tokenise a reflection, and append the token that ends its turn unless the text `is_cut`."""
    return [*encode(tokenizer, mark(tokenizer, text)), *([] if is_cut else [tokenizer.eos_token_id])]


def samples(tokenizer: Any, texts: Iterable[AdviceText]) -> Iterator[Sample]:
    """Yield each distinct advice once, tokenised, in the order of first appearance."""
    for advice in dict.fromkeys(texts):
        yield Sample(prompt_ids(tokenizer, advice.prompt), response_ids(tokenizer, advice.text, advice.is_cut))


def sample_pairs(tokenizer: Any, pairs: Iterable[PreferencePair]) -> Iterator[SamplePair]:
    """Yield each distinct (prompt, chosen, rejected) once, tokenised, in the order of first appearance."""
    distinct = dict.fromkeys(
        (pair.prompt, (pair.chosen, pair.chosen_is_cut), (pair.rejected, pair.rejected_is_cut)) for pair in pairs
    )
    for prompt, *responses in distinct:
        chosen, rejected = (response_ids(tokenizer, *response) for response in responses)
        yield SamplePair(prompt_ids(tokenizer, prompt), chosen, rejected)


def require_length(lengths: Sequence[int], max_length: int, what: str) -> None:
    """Raise ConfigError if a sample is too long: trainers would silently cut it or drop its row."""
    too_long = [length for length in lengths if length > max_length]
    if too_long:
        raise ConfigError(
            f"{len(too_long)} of {len(lengths)} {what} are longer than train.max_length={max_length} tokens "
            f"(the longest has {max(too_long)}): raise train.max_length, or lower reflector.prompt_characters and "
            "collect again."
        )


class RatedResponse(NamedTuple):
    """A reflection in tokens, as it was sampled."""

    drawn: tuple[DrawnToken, ...]
    rating: float


class RatedGroup(NamedTuple):
    """Reflections on one prompt whose ratings differ."""

    prompt: Prompt
    responses: tuple[RatedResponse, ...]


def rated_groups(reflections: Iterable[Rating]) -> list[RatedGroup]:
    """Group reflections by their prompt, in the order of first appearance; groups with equal ratings are left out.

    Raises:
        ConfigError: a reflection was stored without its tokens, or was sampled at another temperature than 1, so that
            the probability with which it was sampled is unknown.
    """
    groups = dict[Prompt, list[RatedResponse]]()
    for rated in reflections:
        reflection = rated.reflection
        if reflection.drawn is None or reflection.sampling.temperature != 1.0:
            raise ConfigError(
                f"The reflection {rated.candidate} on {rated.task_id!r} (trial {rated.trial}) does not say how likely "
                "it was when it was sampled: collect with "
                "train.grpo.reward=stored and reflector.temperature=1, or set train.grpo.reward to model or live."
            )
        groups.setdefault(reflection.prompt, []).append(RatedResponse(reflection.drawn, rated.rating))
    return [
        RatedGroup(prompt, tuple(responses))
        for prompt, responses in groups.items()
        if len({response.rating for response in responses}) > 1
    ]
