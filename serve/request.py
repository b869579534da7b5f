"""What FastChat's API server asks of a worker, and why it may be refused."""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from fastchat.constants import ErrorCode

from serve.sampling import Sampling

SEED = re.compile(r"<\|seed:(\d+)\|>")
"""FastChat forwards no `seed`, but every stop string: one of this form is taken out and seeds the request."""
SEED_BITS = 63

Parameters = Mapping[str, Any]


class Refusal(Exception):
    """A request that cannot be answered, with FastChat's code for the reason."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = {"text": message, "error_code": int(code)}


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


def stops_and_seed(params: Parameters) -> tuple[list[str], int]:
    """The stop strings, and the seed that stands between them; a random one where there is none."""
    stop = params.get("stop") or []
    stops = [text for text in ([stop] if isinstance(stop, str) else stop) if text]
    seeds = [int(found[1]) for text in stops if (found := SEED.fullmatch(text))]
    seed = seeds[0] % 2**SEED_BITS if seeds else secrets.randbits(SEED_BITS)
    return [text for text in stops if not SEED.fullmatch(text)], seed
