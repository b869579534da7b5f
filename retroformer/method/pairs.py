"""Preferences between two reflections on the same failure (Retroformer, section 4.3, eq. 4)."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations

from retroformer.method.rating import Rating, Rerating, by_failure, count_signs, ratings
from retroformer.method.records import PreferencePair
from retroformer.run.store import Store


def preferences(rated: Iterable[Rating]) -> Iterator[tuple[Rating, Rating]]:
    """Yield (better, worse) for all pairs of reflections on a trajectory whose ratings differ by more than their error.

    Ties and pairs of equal or blank texts are left out: a reward model could learn nothing but noise from them.
    Reflections on the failures of one task and trial must be adjacent, as they are in the order of their keys.
    """
    for candidates in by_failure(rated):
        for better, worse in combinations(candidates, 2):
            if worse.rating > better.rating:
                better, worse = worse, better
            # The margin of a tie is 0, which exceeds no error.
            error = math.hypot(better.standard_error, worse.standard_error)
            distinct = better.text != worse.text and better.text.strip() and worse.text.strip()
            if distinct and better.rating - worse.rating > error:
                yield better, worse


def preference_pairs(store: Store, arm: str, anew: Rerating | None = None) -> Iterator[PreferencePair]:
    """Yield the preferences among the rated reflections of an arm, with the prompt that both answered."""
    for better, worse in preferences(ratings(store, arm, records=True, anew=anew)):
        yield PreferencePair(
            task_id=better.task_id,
            prompt=better.prompt,
            chosen=better.text,
            rejected=worse.text,
            chosen_is_cut=better.is_cut,
            rejected_is_cut=worse.is_cut,
            margin=better.rating - worse.rating,
        )


def count_ratings(arms: Iterable[Iterable[Rating]]) -> str:
    """Return how many reflections are rated, by arm, with which signs, and how many pairs they make."""
    signs = Counter[str]()
    pairs = sum(1 for rated in arms for _ in preferences(count_signs(rated, signs)))
    return (
        f"{signs.total()} rated: {signs['positive']} positive, {signs['negative']} negative, {signs['zero']} zero; "
        f"{pairs} pairs"
    )
