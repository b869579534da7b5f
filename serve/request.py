"""What FastChat's API server asks of a worker, and why it may be refused."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from fastchat.constants import ErrorCode

from retroformer.own_server import choices_in, seed_in, without_fields
from serve.choices import Choices
from serve.sampling import Sampling

SEED_BITS = 63

Parameters = Mapping[str, Any]


class Refusal(Exception):
    """A request that cannot be answered, with FastChat's code for the reason."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = {"text": message, "error_code": int(code)}


class TooLong(Refusal):
    """A prompt that need not be read to know that it is too long."""

    def __init__(self, context_tokens: int) -> None:
        super().__init__(
            ErrorCode.CONTEXT_OVERFLOW, f"The prompt has more than the {context_tokens} tokens that can be served."
        )
        self.tokens = context_tokens + 1
        """As many or more."""


def refuse_what_is_not_supported(params: Parameters) -> None:
    """What would otherwise be ignored in silence."""
    asked = {
        "images": bool(params.get("images")),
        "logprobs": params.get("logprobs") is not None,
        "best_of": (params.get("best_of") or 1) > 1,
        "beam search": bool(params.get("use_beam_search")),
        "repetition_penalty": (params.get("repetition_penalty") or 1.0) != 1.0,
    }
    for name, present in asked.items():
        if present:
            raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"{name} is not supported here.")


def sampling(params: Parameters) -> Sampling:
    def given(name: str) -> float:
        value = params.get(name)
        return float(getattr(Sampling, name) if value is None else value)

    try:
        return Sampling(
            temperature=given("temperature"),
            top_p=given("top_p"),
            top_k=int(given("top_k")),
            frequency_penalty=given("frequency_penalty"),
            presence_penalty=given("presence_penalty"),
        )
    except (TypeError, ValueError) as error:
        raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"A sampling parameter is not a number: {error}") from error


def tokens_of_prompt(params: Parameters, vocabulary: int) -> list[int]:
    """The prompt of a request that gives it in tokens.

    Raises:
        Refusal: one of them is none of the model's, and no row of its pass could be computed.
    """
    tokens: list[int] = params["prompt_token_ids"]
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"Tokens of a prompt are 0 to {vocabulary - 1}.")
    return tokens


def stop_strings(params: Parameters) -> list[str]:
    """Texts before which the answer ends."""
    return without_fields(_stop(params))


def seed(params: Parameters) -> int:
    """Of the sampling of this one of a request's answers; a random one where the request names none.

    Raises:
        Refusal: what it names is no seed.
    """
    try:
        named = seed_in(_stop(params))
    except ValueError as error:
        raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"The seed cannot be used: {error}.") from error
    if named is None:
        return secrets.randbits(SEED_BITS)
    number = params.get("answer") or 0
    return _derived(f"answer {named} {number}") if number else named % 2**SEED_BITS


def seeds(params: Parameters, count: int) -> list[int]:
    """Of `count` answers to choose from. The first is the request's own: a single answer is among any number."""
    own = seed(params)
    return [own, *(_derived(f"{own} {number}") for number in range(1, count))]


def _derived(text: str) -> int:
    drawn: int = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 2**SEED_BITS
    return drawn


def choices(params: Parameters, encode: Callable[[str], list[int]], end: int, limit: int) -> Choices | None:
    """The texts that the answer must be one of, each in tokens with the token `end` behind it; None where it is free.

    Raises:
        Refusal: they cannot be read, there is none, or one is longer than `limit` tokens.
    """
    try:
        texts = choices_in(_stop(params))
    except ValueError as error:
        raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"The choices cannot be used: {error}.") from error
    if texts is None:
        return None
    sequences = [encode(text) for text in texts]
    longest = max(range(len(texts)), key=lambda index: len(sequences[index]))
    if len(sequences[longest]) > limit:
        raise Refusal(
            ErrorCode.PARAM_OUT_OF_RANGE,
            f"The choice {texts[longest][:100]!r} has {len(sequences[longest])} tokens, and {limit} may be written.",
        )
    return Choices([*sequence, end] for sequence in sequences)


def _stop(params: Parameters) -> list[str]:
    stop = params.get("stop") or []
    return [text for text in ([stop] if isinstance(stop, str) else stop) if text]
