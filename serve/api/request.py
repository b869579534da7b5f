"""Requests of FastChat's API server to a worker, and the reasons to refuse them."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from fastchat.constants import ErrorCode

from retroformer.endpoint.own_server import choices_in, seed_in, without_fields

from ..engine.choices import Choices
from ..engine.sampling import SamplingParameters

SEED_BITS = 63

Parameters = Mapping[str, Any]


class Refusal(Exception):
    """Raised for a request that cannot be answered, with FastChat's code for the reason."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = {"text": message, "error_code": int(code)}


class TooLong(Refusal):
    """Raised for a prompt that is too long by its number of characters alone."""

    def __init__(self, context_tokens: int) -> None:
        super().__init__(
            ErrorCode.CONTEXT_OVERFLOW, f"The prompt has more than the {context_tokens} tokens that can be served."
        )
        self.tokens = context_tokens + 1
        """Lower bound of the number of tokens in the prompt."""


def refuse_unsupported(params: Parameters) -> None:
    """Raise Refusal for a parameter that would otherwise be ignored silently."""
    requested = {
        "images": bool(params.get("images")),
        "logprobs": params.get("logprobs") is not None,
        "best_of": (params.get("best_of") or 1) > 1,
        "beam search": bool(params.get("use_beam_search")),
        "repetition_penalty": (params.get("repetition_penalty") or 1.0) != 1.0,
    }
    for name, present in requested.items():
        if present:
            raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"{name} is not supported here.")


def sampling(params: Parameters) -> SamplingParameters:
    def given(name: str) -> float:
        value = params.get(name)
        return float(getattr(SamplingParameters, name) if value is None else value)

    try:
        return SamplingParameters(
            temperature=given("temperature"),
            top_p=given("top_p"),
            top_k=int(given("top_k")),
            frequency_penalty=given("frequency_penalty"),
            presence_penalty=given("presence_penalty"),
        )
    except (TypeError, ValueError) as error:
        raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"A sampling parameter is not a number: {error}") from error


def tokens_of_prompt(params: Parameters, vocabulary: int) -> list[int]:
    """Return the prompt of a request that gives it in tokens.

    Raises:
        Refusal: a token is outside the model's vocabulary, which would fail every row of its pass.
    """
    tokens: list[int] = params["prompt_token_ids"]
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"Tokens of a prompt are 0 to {vocabulary - 1}.")
    return tokens


def stop_strings(params: Parameters) -> list[str]:
    """Return the stop strings: the answer ends before the first of them."""
    return without_fields(_stop(params))


def seed(params: Parameters) -> int:
    """Return the sampling seed of this answer to a request; a random one if the request has none.

    Raises:
        Refusal: the seed of the request is invalid.
    """
    try:
        requested = seed_in(_stop(params))
    except ValueError as error:
        raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"The seed cannot be used: {error}.") from error
    if requested is None:
        return secrets.randbits(SEED_BITS)
    number = params.get("answer") or 0
    return _derived(f"answer {requested} {number}") if number else requested % 2**SEED_BITS


def seeds(params: Parameters, count: int) -> list[int]:
    """Return the seeds of `count` candidates. The first is the request's own: a single answer is among any number."""
    own = seed(params)
    return [own, *(_derived(f"{own} {number}") for number in range(1, count))]


def _derived(text: str) -> int:
    number: int = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) % 2**SEED_BITS
    return number


def choices(params: Parameters, encode: Callable[[str], list[int]], end: int, limit: int) -> Choices | None:
    """Return the texts that the answer must be one of, in tokens, each followed by `end`; None allows any answer.

    Raises:
        Refusal: the choices are unreadable or empty, or one is longer than `limit` tokens.
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
