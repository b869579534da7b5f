"""Advice that other programs record with an attempt."""

from typing import Any

from retroformer.errors import MissingInput

_ADVICE = ("retroformer.advice", "advice")


def advice_in(values: Any, place: str) -> tuple[str, ...]:
    """Return the advice that an attempt's own data hold, () without any. Raises MissingInput if it is no text."""
    for name in _ADVICE if isinstance(values, dict) else ():
        advice = values.get(name)
        texts = [advice] if isinstance(advice, str) else advice
        if texts is None:
            continue
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise MissingInput(f"{place}[{name!r}] is {repr(advice)[:80]}: it must be a text or a list of texts.")
        return tuple(texts)
    return ()
