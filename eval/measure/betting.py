"""Sequential test of a mean by betting: it may be looked at after every observation and stopped at any time.

A bettor begins with a wealth of 1 and bets the share b of it on the next difference d, which is between -1 and 1: the
wealth becomes (1 + b d) times as much. If the mean of the differences is not above 0, whatever came before, the wealth
does not grow on average, and by Ville's inequality the probability that it ever reaches 1 / level is at most level. So
a wealth of 20 shows at the level .05 that the mean is above 0. (Waudby-Smith and Ramdas, Estimating means of bounded
random variables by betting, Journal of the Royal Statistical Society B 86, 2024, sections 2 and 4; Ville, Étude
critique de la notion de collectif, 1939.)

The wealth here is the mean of the wealths of five bettors, each with one share of `BETS`. The mean has the same bound,
and it grows whether the differences are large and rare or small and frequent.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BETS = np.array([0.05, 0.1, 0.2, 0.4, 0.8])
"""Shares of their wealth that the bettors stake on every difference."""

LEVEL = 0.05
"""Largest probability of promoting an adapter that is not better, and of rolling back one that is not worse."""

Floats = NDArray[np.float64]


class Conclusion(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    OPEN = "open"


class SequentialTest(NamedTuple):
    conclusion: Conclusion
    observations: int
    """Number of differences up to the conclusion; all of them if it is open."""
    log_wealth_better: float
    """Natural logarithm of the wealth of betting on a mean above 0."""
    log_wealth_worse: float
    """Natural logarithm of the wealth of betting on a mean below 0."""


def log_wealth(differences_T: Floats) -> Floats:
    """Return the logarithm of the mean wealth of the bettors after each difference, (T,)."""
    logs_TB = np.log1p(np.multiply.outer(differences_T, BETS)).cumsum(axis=0)
    # The largest logarithm is taken out first, as wealth itself would overflow.
    largest_T1 = logs_TB.max(axis=1, keepdims=True)
    return np.asarray(largest_T1[:, 0] + np.log(np.exp(logs_TB - largest_T1).mean(axis=1)), dtype=np.float64)


def sequential_test(differences: Sequence[float], level: float) -> SequentialTest:
    """Test the differences in their order, and stop at the first that shows the mean to be above or below 0.

    Each of the two wrong conclusions has at most the probability `level`. Raises ValueError: a difference is not
    between -1 and 1.
    """
    values_T = np.asarray(differences, dtype=np.float64)
    if not np.all(np.abs(values_T) <= 1):
        raise ValueError("a difference is not between -1 and 1, so betting on it has no bound")
    if not len(values_T):
        return SequentialTest(Conclusion.OPEN, 0, 0.0, 0.0)
    up_T, down_T = log_wealth(values_T), log_wealth(-values_T)
    crossings = np.flatnonzero(np.maximum(up_T, down_T) >= -np.log(level))
    last = int(crossings[0]) if len(crossings) else len(values_T) - 1
    conclusion = Conclusion.OPEN
    if len(crossings):
        conclusion = Conclusion.BETTER if up_T[last] > down_T[last] else Conclusion.WORSE
    return SequentialTest(conclusion, last + 1, float(up_T[last]), float(down_T[last]))
