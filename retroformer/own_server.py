"""What an experiment's own server is told beyond the OpenAI protocol.

FastChat's API server, which stands before our worker, drops fields that it does not know, but hands on every stop
string. So the client writes what else it has to say as stop strings of a form that no text has, and the worker takes
them out again. A foreign endpoint is never sent one.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence

_SEED = re.compile(r"<\|seed:([0-9]+)\|>")
_SEED_DIGITS = 20
"""Of the largest integer in 64 bits."""
_CHOICES = re.compile(r"<\|choices:(.*)\|>", re.DOTALL)


def seed_field(seed: int) -> str:
    """Says how to seed the sampling."""
    return f"<|seed:{seed}|>"


def choices_field(texts: Sequence[str]) -> str:
    """Says that the completion must be one of `texts`, to the character."""
    # Plain JSON could hold whatever ends a stop string early on its way; these 64 characters cannot.
    return f"<|choices:{base64.urlsafe_b64encode(json.dumps(list(texts)).encode()).decode()}|>"


def seed_in(stops: Iterable[str]) -> int | None:
    """The seed that stands among stop strings, the first if there are several.

    Raises:
        ValueError: it has more digits than any seed.
    """
    digits = next((found[1] for stop in stops if (found := _SEED.fullmatch(stop))), None)
    if digits is None:
        return None
    if len(digits) > _SEED_DIGITS:
        raise ValueError(f"a seed of {len(digits)} digits; at most {_SEED_DIGITS} are read")
    return int(digits)


def choices_in(stops: Iterable[str]) -> list[str] | None:
    """The texts that stand among stop strings; None where nothing is said of choices.

    Raises:
        ValueError: they cannot be read, or there is none.
    """
    fields = [found[1] for stop in stops if (found := _CHOICES.fullmatch(stop))]
    if not fields:
        return None
    texts = [text for field in fields for text in _texts(field)]
    if not texts:
        raise ValueError("the list is empty")
    return texts


def without_fields(stops: Iterable[str]) -> list[str]:
    """The stop strings that are meant as such."""
    return [stop for stop in stops if not (_SEED.fullmatch(stop) or _CHOICES.fullmatch(stop))]


def _texts(field: str) -> list[str]:
    try:
        texts = json.loads(base64.b64decode(field, altchars=b"-_", validate=True))
        json.dumps(texts, ensure_ascii=False).encode()  # JSON can spell half a character, which no tokenizer takes.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"they are not base64url of JSON ({error})") from None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError("they are not a list of texts")
    return texts
