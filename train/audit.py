"""What a reward model is worth on reflections that it has not seen, and what would be worth as much without it.

Pairs of one task share a trajectory, and often a text: intervals here take pairs for independent, and are a little
narrow for that.
"""

import logging
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from retroformer.errors import ConfigError
from train.dataset import SamplePair
from train.sound import METRICS, read_metrics

CHANCE = 0.5
FEWEST_PAIRS = 10
"""With fewer a coin is easily right in all of them, or wrong in all."""
BINS = 5
"""Of confidence, from 1/2 to 1."""
_NORMAL_975 = 1.959964
"""Quantile of the normal distribution for a two-sided interval of 95 %."""

logger = logging.getLogger(__name__)


class Interval(NamedTuple):
    """Of 95 %."""

    low: float
    high: float


def wilson(share: float, count: int) -> Interval:
    """Wilson's score interval of a `share` of `count` > 0 tries."""
    square = _NORMAL_975**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _NORMAL_975 * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return Interval(max(0.0, middle - half), min(1.0, middle + half))


def audit_of_pairs(
    chosen: Sequence[float], rejected: Sequence[float], pairs: Sequence[SamplePair], known: Sequence[SamplePair]
) -> dict[str, Any]:
    """The interval of the accuracy on held-out `pairs`, two rules that know no reward, calibration and length bias.

    The scores are those of the pairs; `known` are the pairs that were trained on. Nothing where there are no pairs.
    """
    if not pairs:
        return {}
    margins = [better - worse for better, worse in zip(chosen, rejected, strict=True)]
    longer = [float(len(pair.chosen.response_ids) - len(pair.rejected.response_ids)) for pair in pairs]
    found: dict[str, Any] = {
        "held_out_accuracy_interval": wilson(fmean(float(margin > 0) for margin in margins), len(pairs)),
        "held_out_calibration_error": calibration_error(margins),
        "held_out_brier": fmean((1 - _probability(margin)) ** 2 for margin in margins),
    }
    if (alike := correlation_of_differences(margins, longer)) is not None:
        found["held_out_length_correlation_within_pairs"] = alike
    for name, advantages in {"longer_wins": longer, "majority": majority(pairs, known)}.items():
        share = fmean(map(_won, advantages))
        found |= {f"held_out_{name}": share, f"held_out_{name}_interval": wilson(share, len(pairs))}
    return found


def majority(pairs: Sequence[SamplePair], known: Sequence[SamplePair]) -> list[float]:
    """What a vote of the training pairs says of each pair: the text that won there more often than it lost should win.

    It never looks at the trajectory, so a reward model that is no better has learned which sentences are good at
    large, not which one is good here. A text that was not seen has no votes; above 0 the chosen one has more.
    """
    votes: Counter[tuple[int, ...]] = Counter()
    for pair in known:
        votes[tuple(pair.chosen.response_ids)] += 1
        votes[tuple(pair.rejected.response_ids)] -= 1
    return [float(votes[tuple(pair.chosen.response_ids)] - votes[tuple(pair.rejected.response_ids)]) for pair in pairs]


def calibration_error(margins: Sequence[float]) -> float:
    """Expected calibration error of the Bradley-Terry probability that the favourite of a pair wins.

    How far, in each bin of probabilities, their mean is from the share of favourites that won; a mean over the bins
    by their pairs. Chance alone makes it larger than 0: by about .1 for 50 pairs.
    """
    off = [0.0] * BINS
    for margin in margins:
        confidence = _probability(abs(margin))
        bin_of = min(BINS - 1, int((confidence - CHANCE) / (1 - CHANCE) * BINS))
        off[bin_of] += confidence - _won(margin)
    return sum(map(abs, off)) / len(margins)


def correlation_of_differences(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's, of two differences within pairs, each pair taken in both orders; None where one never differs."""
    squares = sum(one * one for one in first) * sum(two * two for two in second)
    return sum(one * two for one, two in zip(first, second, strict=True)) / math.sqrt(squares) if squares else None


def require_better_than_chance(reward: Path, weak: Literal["refuse", "allow"]) -> None:
    """Refuse the reward model in `reward` where its held-out pairs do not even lean its way.

    It is refused at a held-out accuracy of one half or less: then the likeliest account of the pairs is that it tells
    nothing, or the contrary. A significance test would ask too much of the tenth of the tasks that is held out: on 54
    pairs, at 5 %, it refuses a model that is right in 65 % of all cases one time in three, this rule one time in 60;
    and what a wrong yes costs is one stage of training, whose result the evaluation judges anyway. The price is that
    nearly one coin in two passes, so one whose interval covers one half is warned of. On fewer than `FEWEST_PAIRS`
    pairs nothing is known, which is said.

    Raises:
        ConfigError: it is no better than chance, and `weak` does not allow that.
    """
    metrics = read_metrics(reward / METRICS)
    pairs, accuracy = metrics.get("held_out_pairs", 0), metrics.get("held_out_accuracy", 0.0)
    if pairs < FEWEST_PAIRS:
        logger.warning("Nothing is known of the reward model in %s: only %d pairs were held out.", reward, pairs)
        return
    low, high = wilson(accuracy, pairs)
    measured = f"{round(accuracy * pairs)} of {pairs} held-out pairs in order (95 % interval {low:.2f} to {high:.2f})"
    if accuracy > CHANCE:
        if low <= CHANCE:
            logger.warning("The reward model in %s may be no better than chance: it put %s.", reward, measured)
        return
    message = f"The reward model in {reward} is no better than chance: it put {measured}"
    if weak == "refuse":
        raise ConfigError(
            f"{message}; collect more tasks or candidates and train it again, or let it pass with "
            "train.weak_reward_model=allow."
        )
    logger.warning("%s.", message)


def _probability(margin: float) -> float:
    """That the first of two wins whose scores differ by `margin` (Bradley-Terry; Retroformer, eq. 4)."""
    return 1 / (1 + math.exp(-margin)) if margin > -700 else 0.0


def _won(advantage: float) -> float:
    """1 where the chosen one is put first, 0 where the other is, 1/2 where neither."""
    return CHANCE if advantage == 0 else float(advantage > 0)
