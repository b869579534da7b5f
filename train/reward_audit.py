"""Measures a reward model on held-out pairs, beside two baselines that read no trajectory.

The intervals and tests treat pairs as independent. Pairs of one task share a trajectory, and often a text, so the
intervals are slightly too narrow, and the p-values slightly too small.
"""

import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal, NamedTuple

from retroformer.errors import ConfigError

from .adapter import Adapter
from .data.samples import SamplePair

CHANCE = 0.5
LEVEL = 0.05
"""Significance level: share of the models with random scores that the test calls better than chance, at most."""
EFFECT = 0.65
"""True accuracy at which the power is stated: about that of the reward models in docs/results/evidence.md."""
POWER = 0.8
"""Power that a study is commonly planned for."""
PAIRS_NEEDED = 76
"""Number of pairs from which on the power at `EFFECT` stays at or above `POWER`. The power of an exact test is not
monotone in the number of pairs, so a smaller number may reach it by chance."""


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
    # The tail only shrinks as the number grows.
    fewest = bisect_left(range(pairs + 1), True, key=lambda correct: at_least(correct, pairs) <= LEVEL)
    return fewest if fewest <= pairs else None


def power(pairs: int, accuracy: float = EFFECT) -> float:
    """Return the probability that the test rejects chance for a reward model of this true accuracy."""
    fewest = fewest_correct(pairs)
    return 0.0 if fewest is None else at_least(fewest, pairs, accuracy)


_NORMAL_975 = 1.959964
"""Quantile of the normal distribution for a two-sided 95% interval."""

logger = logging.getLogger(__name__)


class Interval(NamedTuple):
    """A 95% confidence interval."""

    low: float
    high: float


def wilson(share: float, count: int) -> Interval:
    """Return Wilson's score interval of a `share` of `count` > 0 trials.

    Ties count as half, so `share * count` need not be an integer, which scipy's `binomtest` would require.
    """
    square = _NORMAL_975**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _NORMAL_975 * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def audit_of_pairs(
    chosen: Sequence[float], rejected: Sequence[float], pairs: Sequence[SamplePair], trained_on: Sequence[SamplePair]
) -> dict[str, Any]:
    """Return metrics of held-out `pairs`, whose scores are `chosen` and `rejected`; {} without pairs.

    They are the interval of the accuracy, its test against chance with the power of that test, the accuracy of two
    baselines, the test against the first of them, and length bias: how the score follows the length within pairs, and
    the accuracy on pairs of equally many tokens, where length says nothing.
    """
    if not pairs:
        return {}
    margins = [better - worse for better, worse in zip(chosen, rejected, strict=True)]
    longer = [float(len(pair.chosen_ids) - len(pair.rejected_ids)) for pair in pairs]
    correct = sum(margin > 0 for margin in margins)
    discordant = discordant_pairs(margins, longer)
    metrics: dict[str, Any] = {
        "held_out_accuracy_interval": wilson(correct / len(pairs), len(pairs)),
        "held_out_p_value": at_least(correct, len(pairs)),
        "held_out_power": power(len(pairs)),
        "held_out_against_longer": discordant,
        "held_out_p_value_against_longer": at_least(discordant.won, sum(discordant)),
    }
    if (length_correlation := correlation_of_differences(margins, longer)) is not None:
        metrics["held_out_length_correlation_within_pairs"] = length_correlation
    measures = {
        "longer_wins": longer,
        "majority": majority(pairs, trained_on),
        "equal_length_accuracy": [margin for margin, more in zip(margins, longer, strict=True) if not more],
    }
    for name, advantages in measures.items():
        if advantages:
            share = fmean(map(_won, advantages))
            metrics |= {f"held_out_{name}": share, f"held_out_{name}_interval": wilson(share, len(advantages))}
    return metrics


class Discordant(NamedTuple):
    """Number of pairs that a reward model orders better than a rule, and worse."""

    won: int
    lost: int


def discordant_pairs(margins: Sequence[float], advantages: Sequence[float]) -> Discordant:
    """Count the pairs in which the reward model and a rule differ, for a sign test (McNemar's on these pairs).

    A tie is worth half a pair in the right order, so a rule without an opinion loses to a right order, and wins over a
    wrong one.
    """
    differences = [_won(margin) - _won(advantage) for margin, advantage in zip(margins, advantages, strict=True)]
    return Discordant(sum(d > 0 for d in differences), sum(d < 0 for d in differences))


def majority(pairs: Sequence[SamplePair], trained_on: Sequence[SamplePair]) -> list[float]:
    """Return the votes for the chosen text of each pair minus those for the rejected one, as a baseline.

    A text has one vote for each training pair that it won, minus one for each that it lost; an unseen text has none.
    The votes ignore the trajectory, so a reward model that is no better has learned which texts are good in general,
    not which one is good here.
    """
    votes: Counter[tuple[int, ...]] = Counter()
    for pair in trained_on:
        votes[tuple(pair.chosen_ids)] += 1
        votes[tuple(pair.rejected_ids)] -= 1
    return [float(votes[tuple(pair.chosen_ids)] - votes[tuple(pair.rejected_ids)]) for pair in pairs]


def correlation_of_differences(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Pearson's correlation of two differences within pairs, each pair taken in both orders.

    None if one of the differences is always 0.
    """
    squares = sum(x * x for x in first) * sum(y * y for y in second)
    return sum(x * y for x, y in zip(first, second, strict=True)) / math.sqrt(squares) if squares else None


def require_better_than_chance(reward: Adapter, weak: Literal["refuse", "allow"]) -> None:
    """Refuse the reward model `reward` if its held-out pairs cannot show, or do not show, that it beats chance.

    They cannot if there are so few that not even a perfect order would reject chance at `LEVEL`, which takes five
    pairs. They do not if it put at most half of them in order.

    Above one half, a p-value above the level only warns. To insist on significance would need more pairs than a tenth
    of the tasks gives: with 54 pairs it refuses a model with a true accuracy of 65% in one case of three, this rule in
    one of 60. A wrong acceptance costs only one stage of training, whose result is evaluated anyway. But this rule
    accepts nearly half of all models with random scores, so the p-value and the power are always stated.

    Raises:
        ConfigError: the reward model does not pass, and `weak` does not allow that.
    """
    pairs, accuracy = reward.metrics.held_out_pairs, reward.metrics.held_out_accuracy
    correct = round(accuracy * pairs)
    p_value = at_least(correct, pairs)
    low, high = wilson(correct / pairs, pairs) if pairs else Interval(0.0, 1.0)
    within = f" (95% interval {low:.2f} to {high:.2f})" if pairs else ""
    measured = (
        f"{correct} of {pairs} held-out pairs in order{within}: the exact test against chance gives p = {p_value:.2g}; "
        f"with {pairs} pairs it recognises a true accuracy of {EFFECT:.0%} in {power(pairs):.0%} of cases, and "
        f"{POWER:.0%} would need {PAIRS_NEEDED} pairs"
    )
    if fewest_correct(pairs) is None:
        fault = f"The reward model in {reward.folder} cannot be told from chance on so few pairs: it put {measured}"
    elif accuracy <= CHANCE:
        fault = f"The reward model in {reward.folder} is no better than chance: it put {measured}"
    else:
        if p_value <= LEVEL:
            logger.info("The reward model in %s is better than chance: it put %s.", reward.folder, measured)
        else:
            logger.warning("The reward model in %s may be no better than chance: it put %s.", reward.folder, measured)
        return
    if weak == "refuse":
        raise ConfigError(
            f"{fault}; collect more tasks or candidates and train it again, or let it pass with "
            "train.weak_reward_model=allow."
        )
    logger.warning("%s.", fault)


def _won(advantage: float) -> float:
    """Return 1 if the chosen text is preferred, 0 if the rejected one is, 1/2 for a tie."""
    return CHANCE if advantage == 0 else float(advantage > 0)
