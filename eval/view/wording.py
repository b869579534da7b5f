"""How the wording of advice differs between its authors: length, flags, and the words that one uses more."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_WORDS = 12
"""Words that are shown on each side."""
_PRIOR = 0.5


@dataclass
class Wording:
    """Counts over the advice of one model in one arm."""

    run: str
    arm: str
    model: str
    pieces: int = 0
    words: int = 0
    rated: int = 0
    gained: int = 0
    rating: float = 0.0
    flagged: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    """Number of pieces that hold each word."""

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.model}"

    def add(self, text: str, rating: float | None, flags: Iterable[str]) -> None:
        """Count a piece of advice."""
        words = re.findall(r"\w+", text.lower())
        self.pieces += 1
        self.words += len(words)
        self.counts.update(set(words))
        self.flagged.update(flags)
        if rating is not None:
            self.rated += 1
            self.gained += rating > 0
            self.rating += rating


def typical_words(one: Wording, other: Wording) -> Sequence[tuple[str, int, int]]:
    """Return the words that are more typical of `one`, with the number of pieces of each that hold them.

    They are ordered by the log odds ratio in units of its standard deviation (Monroe et al., 2008, eq. 22, with a flat
    prior), so that rare words do not come first.
    """
    scored = []
    for word, count in one.counts.items():
        there = other.counts[word]
        cells = (count, one.pieces - count, there, other.pieces - there)
        a, b, c, d = (cell + _PRIOR for cell in cells)
        score = math.log(a * d / (b * c)) / math.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
        scored.append((score, word, count, there))
    scored.sort(key=lambda item: (-item[0], item[1]))
    return [(word, count, there) for score, word, count, there in scored[:_WORDS] if score > 1.96]
