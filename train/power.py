"""Exact one-sided tests on held-out pairs, and how often they recognise a reward model that is better than chance."""

import math
from functools import cache
from typing import NamedTuple

CHANCE = 0.5
LEVEL = 0.05
"""Significance level: share of the models with random scores that the test calls better than chance, at most."""
EFFECT = 0.65
"""True accuracy at which the power is stated: about that of the reward models in docs/results/evidence.md."""
POWER = 0.8
"""Power that a study is commonly planned for."""
_MANY_PAIRS = 200
"""Number of pairs from which on the power at `EFFECT` is above 99%."""


class ChanceTest(NamedTuple):
    """Exact binomial test of the number of pairs in the right order against a coin."""

    correct: int
    pairs: int

    @property
    def p_value(self) -> float:
        """Probability that random scores order at least as many pairs correctly; 1 without pairs."""
        return at_least(self.correct, self.pairs)

    @property
    def rejects_chance(self) -> bool:
        return self.p_value <= LEVEL

    @property
    def power(self) -> float:
        """Probability that the test recognises a reward model whose true accuracy is `EFFECT`."""
        return power(self.pairs)

    @property
    def limits(self) -> str:
        """Sentence part that says what the test can show."""
        return (
            f"the exact test against chance gives p = {self.p_value:.2g}; with {self.pairs} pairs it recognises a true "
            f"accuracy of {EFFECT:.0%} in {self.power:.0%} of cases, and {POWER:.0%} would need {pairs_needed()} pairs"
        )


def at_least(count: int, trials: int, share: float = CHANCE) -> float:
    """Return the probability of at least `count` successes in `trials` trials that succeed with probability `share`."""
    logs = (
        math.lgamma(trials + 1)
        - math.lgamma(successes + 1)
        - math.lgamma(trials - successes + 1)
        + successes * math.log(share)
        + (trials - successes) * math.log(1 - share)
        for successes in range(count, trials + 1)
    )
    return min(1.0, math.fsum(map(math.exp, logs)))


def fewest_correct(pairs: int) -> int | None:
    """Return the smallest number of pairs in the right order that rejects chance; None if not even all of them do."""
    # Binary search: the tail only shrinks as the number grows.
    low, high = 0, pairs + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at_least(middle, pairs) <= LEVEL else (middle + 1, high)
    return low if low <= pairs else None


def power(pairs: int, accuracy: float = EFFECT) -> float:
    """Return the probability that the test rejects chance for a reward model of this true accuracy."""
    fewest = fewest_correct(pairs)
    return 0.0 if fewest is None else at_least(fewest, pairs, accuracy)


@cache
def pairs_needed() -> int:
    """Return the number of pairs from which on the power at `EFFECT` stays at or above `POWER`.

    The power of an exact test is not monotone in the number of pairs, so a smaller number may reach it by chance.
    """
    return 1 + max(pairs for pairs in range(_MANY_PAIRS) if power(pairs) < POWER)


def fewest_pairs() -> int:
    """Return the smallest number of pairs that can reject chance at all: below, even a perfect order proves nothing."""
    return math.ceil(math.log(LEVEL) / math.log(CHANCE))
