"""Names for best-of-n sampling: `sft+best8` samples 8 answers from `sft` and keeps the one with the highest reward."""

import re
from typing import NamedTuple

BEST_OF = r"(?P<model>[^@+]+)\+best(?P<answers>[2-9]|[1-5]\d|6[0-4])"
"""Regular expression of a best-of-n name, with n from 2 to 64."""


class BestOf(NamedTuple):
    """Parts of a best-of-n name."""

    model: str
    """Model that samples the answers: `base` or the name of an adapter."""
    answers: int
    """Number of answers to choose from."""


def best_of(name: str) -> BestOf | None:
    """Parse a best-of-n name, with or without an `@hash` suffix. Return None for the name of a plain model."""
    match = re.fullmatch(BEST_OF, name.partition("@")[0])
    return BestOf(match["model"], int(match["answers"])) if match else None


def adapter_name(model: str) -> str:
    """Return the name of the adapter that writes a model's answers: `sft` for `sft`, `sft@HASH` and `sft+best8`."""
    chosen = best_of(model)
    return model.partition("@")[0] if chosen is None else chosen.model
