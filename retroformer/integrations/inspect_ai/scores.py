"""Scores of Inspect's samples as numbers from 0 to 1."""

import math
from collections.abc import Mapping
from typing import Any

from inspect_ai.log import EvalSample

from retroformer.errors import MissingInput

_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
"""Scores that Inspect writes as text: correct, partial, incorrect, no answer, and truth values."""


def score_of(sample: EvalSample, wanted: str | None, where: str) -> float | None:
    """Return the score of a sample; None without one. Raises MissingInput if it is none from 0 to 1."""
    scores: dict[str, Any] = {}
    for name, score in (sample.scores or {}).items():
        if isinstance(score.value, Mapping):
            scores |= {f"{name}.{part}": value for part, value in score.value.items()}
        else:
            scores[name] = score.value
    if wanted is None and len(scores) > 1:
        raise MissingInput(
            f"{where} has the scores {', '.join(sorted(scores))}: choose one, as in `--score {min(scores)}`."
        )
    name = next(iter(scores), "") if wanted is None else wanted
    return _number(scores[name], f"{where}: scores[{name!r}].value") if scores.get(name) is not None else None


def _number(value: Any, place: str) -> float | None:
    """Return a score as a number from 0 to 1; None if the scorer could not give one, which Inspect writes as NaN."""
    if isinstance(value, str):
        text = value.strip()
        value = _LETTERS.get(text, _LETTERS.get(text.lower(), text))
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isnan(number):
        return None
    if not 0 <= number <= 1:
        raise MissingInput(f"{place} is {repr(value)[:80]}: it must be a number from 0 to 1, or C, P, I or N.")
    return number
