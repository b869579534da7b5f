"""Extra request fields that only the experiment's own server understands.

FastChat's API server, which is in front of our worker, drops fields that it does not know but passes on every stop
string. So the client encodes extra fields as stop strings of a form that no text has, and the worker decodes and
removes them. Other endpoints never receive them.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence

_SEED = re.compile(r"<\|seed:([0-9]+)\|>")
_SEED_DIGITS = 20
"""Number of digits of the largest 64-bit integer."""
_CHOICES = re.compile(r"<\|choices:(.*)\|>", re.DOTALL)


def seed_field(seed: int) -> str:
    """Encode the sampling seed as a stop string."""
    return f"<|seed:{seed}|>"


def choices_field(texts: Sequence[str]) -> str:
    """Encode as a stop string that the completion must be exactly one of `texts`."""
    # Plain JSON could contain text that ends a stop string early; the 64 characters of base64 cannot.
    return f"<|choices:{base64.urlsafe_b64encode(json.dumps(list(texts)).encode()).decode()}|>"


def seed_in(stops: Iterable[str]) -> int | None:
    """Return the seed among stop strings, the first if there are several, or None.

    Raises:
        ValueError: it has more digits than a 64-bit seed.
    """
    digits = next((match[1] for stop in stops if (match := _SEED.fullmatch(stop))), None)
    if digits is None:
        return None
    if len(digits) > _SEED_DIGITS:
        raise ValueError(f"a seed of {len(digits)} digits; at most {_SEED_DIGITS} are read")
    return int(digits)


def choices_in(stops: Iterable[str]) -> list[str] | None:
    """Return the choices encoded among stop strings, or None if there is no such field.

    Raises:
        ValueError: they cannot be read, or the list is empty.
    """
    fields = [match[1] for stop in stops if (match := _CHOICES.fullmatch(stop))]
    if not fields:
        return None
    texts = [text for field in fields for text in _texts(field)]
    if not texts:
        raise ValueError("the list is empty")
    return texts


def without_fields(stops: Iterable[str]) -> list[str]:
    """Return the real stop strings, without encoded fields."""
    return [stop for stop in stops if not (_SEED.fullmatch(stop) or _CHOICES.fullmatch(stop))]


def _texts(field: str) -> list[str]:
    try:
        texts = json.loads(base64.b64decode(field, altchars=b"-_", validate=True))
        json.dumps(texts, ensure_ascii=False).encode()  # JSON can hold unpaired surrogates, which no tokenizer accepts.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"they are not base64url of JSON ({error})") from None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("they are not a list of texts")
    return texts
