"""What held-out pairs say about a reward model: tests against chance and their power, and baselines."""

import json
import logging
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from retroformer.errors import ConfigError
from retroformer.run.stage_metrics import StageMetrics
from tests.train.world import collect, config_file
from train.__main__ import main
from train.adapter import Adapter
from train.data.samples import SamplePair
from train.reward_audit import (
    PAIRS_NEEDED,
    Discordant,
    at_least,
    audit_of_pairs,
    correlation_of_differences,
    discordant_pairs,
    fewest_correct,
    majority,
    power,
    require_better_than_chance,
    wilson,
)


def exactly(count: int, trials: int, share: Fraction) -> float:
    """Return the same probability by exact fractions."""
    chances = (math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(count, trials + 1))
    return float(sum(chances, Fraction()))


def test_the_tail_is_that_of_the_binomial_distribution() -> None:
    # 8, 9 or 10 heads in 10 tosses: (45 + 10 + 1) / 1024.
    assert at_least(8, 10) == pytest.approx(56 / 1024, rel=1e-12)
    assert (at_least(0, 3), at_least(4, 3), at_least(0, 0)) == (1.0, 0.0, 1.0)
    # Two or three successes with probability 3/4: 3 * 9/64 + 27/64.
    assert at_least(2, 3, 0.75) == pytest.approx(54 / 64, rel=1e-12)
    for trials in (17, 54, 500):
        for count in (0, trials // 2, trials - 3):
            assert at_least(count, trials, 0.65) == pytest.approx(exactly(count, trials, Fraction(65, 100)), rel=1e-9)


def test_five_pairs_are_the_fewest_that_can_reject_chance() -> None:
    # 1/16 = .0625 is above the level, 1/32 = .03125 below.
    assert [fewest_correct(pairs) for pairs in (0, 4, 5, 8, 10)] == [None, None, 5, 7, 9]
    # 9 of 10: 11/1024 = .0107; 8 of 10: 56/1024 = .0547.
    assert at_least(9, 10) <= 0.05 < at_least(8, 10)


def test_the_smallest_significant_count_rejects_and_the_one_below_does_not() -> None:
    for pairs in range(5, 130):
        fewest = fewest_correct(pairs)
        assert fewest is not None
        assert at_least(fewest, pairs) <= 0.05 < at_least(fewest - 1, pairs)


def test_the_power_is_the_chance_of_a_significant_count() -> None:
    assert power(4) == 0.0
    # Five of five at .65: .65^5. With 10 pairs nine or ten: 10 * .65^9 * .35 + .65^10.
    assert power(5) == pytest.approx(0.65**5)
    assert power(10) == pytest.approx(10 * 0.65**9 * 0.35 + 0.65**10)
    assert power(54) == pytest.approx(exactly(34, 54, Fraction(65, 100)))
    assert power(20, 0.5) <= 0.05, "at an accuracy of one half, the power is the level at most"


def test_from_the_needed_number_of_pairs_on_the_power_stays_at_80_percent() -> None:
    # The normal approximation: ((1.645 * .5 + .842 * .477) / .15)^2 = 66.7.
    assert 67 <= PAIRS_NEEDED <= 80
    assert power(PAIRS_NEEDED - 1) < 0.8
    assert min(power(pairs) for pairs in range(PAIRS_NEEDED, 400)) >= 0.8


LOG_3 = math.log(3)
"""A margin with odds of 3 to 1, a probability of .75."""


def pair(chosen: list[int], rejected: list[int]) -> SamplePair:
    return SamplePair([1], chosen, rejected)


def measured(folder: Path, pairs: int, accuracy: float | None) -> Adapter:
    """Return a reward model without an interval, and without an accuracy if there are no held-out pairs."""
    metrics: dict[str, Any] = {"held_out_pairs": pairs} | ({} if accuracy is None else {"held_out_accuracy": accuracy})
    return Adapter(folder, "", StageMetrics.model_validate(metrics))


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    # With z = 1.96 and 8 of 10: middle (.8 + .19208) / 1.38416, half width 1.96 * sqrt(.016 + .009604) / 1.38416.
    assert wilson(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0.0, 5) == pytest.approx((0.0, 0.4345), abs=1e-4)
    assert wilson(1.0, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)


def test_the_correlation_of_differences_counts_each_pair_in_both_orders() -> None:
    assert correlation_of_differences([1.0, 2.0], [3.0, 6.0]) == pytest.approx(1.0)
    # Always chosen by one point, once 4 tokens longer, once 4 shorter: there is no correlation with length.
    assert correlation_of_differences([1.0, 1.0], [4.0, -4.0]) == pytest.approx(0.0)
    assert correlation_of_differences([3.0, 4.0], [1.0, 0.0]) == pytest.approx(0.6)
    assert correlation_of_differences([1.0, 2.0], [0.0, 0.0]) is None


def test_the_majority_vote_ignores_the_trajectory() -> None:
    trained_on = [pair([5], [6]), pair([5], [6]), pair([6], [5]), pair([7], [8])]
    asked = [pair([5], [6]), pair([6], [5]), pair([9], [8]), pair([9], [10])]
    assert majority(asked, trained_on) == [2.0, -2.0, 1.0, 0.0]


def test_the_audit_of_three_pairs_gives_the_numbers_worked_by_hand() -> None:
    trained_on = [pair([5], [6])]
    held_out = [pair([5], [6, 7]), pair([6, 7], [5]), pair([8, 9], [10, 11])]
    metrics = audit_of_pairs([LOG_3, 0.0, 0.0], [0.0, LOG_3, -LOG_3], held_out, trained_on)
    assert metrics["held_out_accuracy_interval"] == wilson(2 / 3, 3)
    assert metrics["held_out_equal_length_accuracy"] == 1, "of three pairs, the last has texts of two tokens each"
    assert metrics["held_out_equal_length_accuracy_interval"] == wilson(1.0, 1)
    # Longer: lost, won, equal. The training pair votes for [5]: won, lost, never seen.
    assert (metrics["held_out_longer_wins"], metrics["held_out_majority"]) == (0.5, 0.5)
    assert metrics["held_out_longer_wins_interval"] == metrics["held_out_majority_interval"] == wilson(0.5, 3)
    # Score differences 1, -1, 1 (in logs of 3), lengths -1, 1, 0: -2 / sqrt(3 * 2).
    assert metrics["held_out_length_correlation_within_pairs"] == pytest.approx(-2 / math.sqrt(6))
    # Two of three or more: (3 + 1) / 8. The rule loses the first and the third pair and wins the second: (3 + 1) / 8.
    assert metrics["held_out_p_value"] == pytest.approx(0.5)
    assert metrics["held_out_against_longer"] == (2, 1)
    assert metrics["held_out_p_value_against_longer"] == pytest.approx(0.5)
    assert metrics["held_out_power"] == 0
    assert audit_of_pairs([], [], [], trained_on) == {}


def test_pairs_on_which_reward_model_and_rule_agree_do_not_count_in_their_comparison() -> None:
    # Both right, both wrong, only the model right, only the rule right, and no opinion of the rule or of the model.
    margins, advantages = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 0.0], [2.0, -2.0, -2.0, 2.0, 0.0, 0.0, 2.0]
    assert discordant_pairs(margins, advantages) == Discordant(won=2, lost=3)


def test_a_reward_model_no_better_than_chance_is_refused(tmp_path: Path) -> None:
    for accuracy in (0.2, 0.5):
        with pytest.raises(ConfigError, match=r"is no better than chance: it put \d+ of 20 .*weak_reward_model=allow"):
            require_better_than_chance(measured(tmp_path, 20, accuracy), "refuse")


def test_the_config_can_allow_a_weak_reward_model_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_better_than_chance(measured(tmp_path, 20, 0.5), "allow")
    assert (
        "is no better than chance: it put 10 of 20 held-out pairs in order (95% interval 0.30 to 0.70): " in caplog.text
    )


def test_an_accuracy_that_luck_explains_gives_a_warning_with_p_value_and_power(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Two reward models of the evidence: 32 of 58 pairs are compatible with chance, 35 of 54 are not.
    require_better_than_chance(measured(tmp_path, 58, 32 / 58), "refuse")
    assert "may be no better than chance: it put 32 of 58 held-out pairs in order" in caplog.text
    assert "p = 0.26; with 58 pairs it recognises a true accuracy of 65% in 73% of cases, and 80% would" in caplog.text
    caplog.clear()
    require_better_than_chance(measured(tmp_path, 54, 35 / 54), "refuse")
    assert caplog.text == ""


@pytest.mark.parametrize(("pairs", "accuracy"), [(0, None), (3, 1.0), (4, 1.0)])
def test_so_few_pairs_that_a_perfect_order_proves_nothing_are_refused(
    tmp_path: Path, pairs: int, accuracy: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = (
        rf"cannot be told from chance on so few pairs: it put {pairs} of {pairs} .* in 0% of cases, and 80% would "
    )
    with pytest.raises(
        ConfigError, match=rf"{sentence}need 76 pairs; collect more .*train\.weak_reward_model=allow\.$"
    ):
        require_better_than_chance(measured(tmp_path, pairs, accuracy), "refuse")
    require_better_than_chance(measured(tmp_path, pairs, accuracy), "allow")
    assert f"it put {pairs} of {pairs} held-out pairs in order" in caplog.text


def test_five_pairs_in_order_are_enough_and_the_pairs_of_the_shipped_runs_are(tmp_path: Path) -> None:
    # Six reward models of experiments, three of docs/results/evidence.md among them.
    for correct, pairs in ((5, 5), (3, 5), (7, 13), (11, 15), (8, 12), (35, 54), (32, 58), (30, 45)):
        require_better_than_chance(measured(tmp_path, pairs, correct / pairs), "refuse")
    for correct, pairs in ((2, 5), (4, 8), (6, 13), (27, 54)):
        with pytest.raises(ConfigError, match="is no better than chance"):
            require_better_than_chance(measured(tmp_path, pairs, correct / pairs), "refuse")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_ppo_does_not_start_from_a_reward_model_that_failed_its_audit(
    tiny_base: Path, workplace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=4)
    for stage in ("sft", "reward"):
        main([stage, str(config)])
    path = workplace / "runs/tiny/reward/metrics.json"
    metrics = json.loads(path.read_text())
    assert metrics["held_out_pairs"] == 1
    assert len(metrics["held_out_accuracy_interval"]) == 2
    assert metrics["held_out_power"] == 0
    with pytest.raises(ConfigError, match=r"cannot be told from chance on so few pairs: it put \d of 1 held-out pairs"):
        main(["ppo", str(config), "train.weak_reward_model=refuse"])
    path.write_text(json.dumps(metrics | {"held_out_pairs": 40, "held_out_accuracy": 0.45}))
    with pytest.raises(ConfigError, match=r"The reward model in runs/tiny/reward is no better than chance: it put 18"):
        main(["ppo", str(config), "train.weak_reward_model=refuse"])
    assert not (workplace / "runs/tiny/ppo").exists()
    with caplog.at_level(logging.WARNING):
        main(["ppo", str(config), "train.weak_reward_model=allow"])
    assert "no better than chance" in caplog.text
    caplog.clear()
    main(["ppo", str(config), "train.weak_reward_model=refuse"])  # A finished stage is not checked again.
    assert caplog.text == ""
