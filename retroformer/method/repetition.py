"""Measures of how much texts repeat each other, or copy another text.

Words are sequences of letters and digits in lower case, so the numbers do not depend on a tokenizer. Only literal
repetition counts, and a quoted observation counts as much as a quoted action.
"""

import re
from collections.abc import Iterator

from retroformer.method.records import Reflection, Trajectory

COPIED_WORDS = 4
"""A sequence of this many words that is also in the source counts as copied."""
RESTATEMENT_SHARE = 0.5
"""Share of its n-grams that a text must copy from an attempt to count as restating it."""


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def texts_of(attempt: Trajectory) -> Iterator[str]:
    """Yield what an attempt shows: its opening, and the texts of its steps."""
    yield attempt.opening
    for step in attempt.steps:
        yield from (step.thought, step.action, step.observation)


def n_grams(text: str, n: int) -> list[tuple[str, ...]]:
    """Return all sequences of `n` consecutive words, in order."""
    words = words_of(text)
    return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]


class DistinctCounter:
    """Counter of the share of distinct n-grams in texts that arrive one by one."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._seen: set[tuple[str, ...]] = set()
        self._total = 0

    def add(self, text: str) -> None:
        """Count one text."""
        grams = n_grams(text, self._n)
        self._seen.update(grams)
        self._total += len(grams)

    @property
    def share(self) -> float:
        """Share of distinct n-grams, 0 if there are none (distinct-n of Li et al., 2016); it falls with length."""
        return len(self._seen) / self._total if self._total else 0.0


def copied_share(text: str, source: str, elsewhere: str = "") -> float:
    """Return the share of the text's 4-grams that are in `source` and not in `elsewhere`; 0 for a shorter text."""
    here, there = set(n_grams(source, COPIED_WORDS)), set(n_grams(elsewhere, COPIED_WORDS))
    grams = n_grams(text, COPIED_WORDS)
    return sum(gram in here and gram not in there for gram in grams) / len(grams) if grams else 0.0


def text_before(reflection: Reflection, failure: Trajectory | None) -> str:
    """Return what the reflector read last: the end of its prompt, else the attempt."""
    if reflection.prompt:
        return reflection.prompt[-1].content
    return "" if failure is None else "\n".join(texts_of(failure))
