"""Numbers worked by hand, and the limits in which the formulas become simple."""

import math

import pytest
import torch

from train.losses import (
    clipped_policy_loss,
    clipped_value_loss,
    divergence,
    generalized_advantages,
    implicit_rewards,
    k1,
    masked_mean,
    preference_loss,
    token_rewards,
    whitened,
)


def test_the_score_is_paid_at_the_last_token_and_divergence_at_each() -> None:
    log_probs_BT = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, -9.0]])
    reference_log_probs_BT = torch.tensor([[-1.5, -1.0, -3.0], [-2.0, -1.0, -1.0]])
    rewards_BT = token_rewards(
        scores_B=torch.tensor([2.0, -1.0]),
        divergences_BT=k1(log_probs_BT, reference_log_probs_BT),
        mask_BT=torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
        kl_weight=0.1,
    )
    # Row 1: -0.1*0.5, -0.1*-1, -0.1*0 + 2. Row 2: -0.1*1, -0.1*0 - 1, and nothing at the padding.
    expected_BT = torch.tensor([[-0.05, 0.1, 2.0], [-0.1, -1.0, 0.0]])
    torch.testing.assert_close(rewards_BT, expected_BT)


def test_advantages_follow_the_recursion_worked_by_hand() -> None:
    # gamma 0.5, lambda 0.5. Last token: 4 - 2 = 2. Middle: 2 + 0.5*2 - 1 + 0.25*2 = 2.5. First: 0 + 0.5 - 1 + 0.625.
    advantages_BT, returns_BT = generalized_advantages(
        torch.tensor([[0.0, 2.0, 4.0]]), torch.tensor([[1.0, 1.0, 2.0]]), torch.ones(1, 3), gamma=0.5, lam=0.5
    )
    torch.testing.assert_close(advantages_BT, torch.tensor([[0.125, 2.5, 2.0]]))
    torch.testing.assert_close(returns_BT, torch.tensor([[1.125, 3.5, 4.0]]))


def test_with_lambda_one_the_advantage_is_the_return_minus_the_value() -> None:
    rewards_BT, values_BT = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[3.0, 1.0, 2.0]])
    advantages_BT, _ = generalized_advantages(rewards_BT, values_BT, torch.ones(1, 3), gamma=1.0, lam=1.0)
    torch.testing.assert_close(advantages_BT, torch.tensor([[7.0, 6.0, 4.0]]) - values_BT)


def test_with_lambda_zero_the_advantage_is_the_error_of_one_step() -> None:
    advantages_BT, _ = generalized_advantages(
        torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]]), torch.ones(1, 2), gamma=1.0, lam=0.0
    )
    torch.testing.assert_close(advantages_BT, torch.tensor([[1.0 + 5.0 - 3.0, 2.0 - 5.0]]))


def test_values_of_padding_do_not_reach_the_response() -> None:
    rewards_BT, mask_BT = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])
    advantages_BT, returns_BT = generalized_advantages(rewards_BT, torch.tensor([[0.5, 99.0]]), mask_BT, 1.0, 0.95)
    torch.testing.assert_close(advantages_BT, torch.tensor([[0.5, 0.0]]))
    torch.testing.assert_close(returns_BT, torch.tensor([[1.0, 0.0]]))


def test_whitening_counts_only_the_tokens_of_responses() -> None:
    white_BT = whitened(torch.tensor([[1.0, 3.0, 50.0]]), torch.tensor([[1.0, 1.0, 0.0]]))
    torch.testing.assert_close(white_BT, torch.tensor([[-1.0, 1.0, 0.0]]))


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [
        (1.0, 1.1, -1.1),  # inside the range: the ratio counts
        (1.0, 1.5, -1.2),  # gone far enough the right way: no more credit
        (1.0, 0.5, -0.5),  # gone the wrong way: full blame
        (-1.0, 0.5, 0.8),  # a bad token made rare enough: no more credit
        (-1.0, 1.5, 1.5),  # a bad token made likelier: full blame
    ],
)
def test_the_policy_loss_is_clipped_only_where_it_would_be_rewarded(
    advantage: float, ratio: float, loss: float
) -> None:
    found_BT = clipped_policy_loss(
        torch.tensor([[math.log(ratio)]]), torch.zeros(1, 1), torch.tensor([[advantage]]), clip=0.2
    )
    assert found_BT.item() == pytest.approx(loss, abs=1e-6)


def test_a_value_that_moved_too_far_is_charged_as_if_it_had_stayed_in_range() -> None:
    # From 0 towards a return of 1: 0.1 is in range, (1-0.1)^2/2. 0.9 is not: charged as 0.2, (1-0.2)^2/2.
    found_BT = clipped_value_loss(torch.tensor([[0.1, 0.9]]), torch.zeros(1, 2), torch.ones(1, 2), clip=0.2)
    torch.testing.assert_close(found_BT, torch.tensor([[0.405, 0.32]]))


def test_equal_scores_cost_log_two_and_perfect_ones_nothing() -> None:
    losses_B = preference_loss(torch.tensor([0.0, 1.0, 60.0]), torch.tensor([0.0, 0.0, -60.0]))
    torch.testing.assert_close(losses_B, torch.tensor([math.log(2), math.log1p(math.exp(-1.0)), 0.0]))


def test_a_mean_leaves_padding_out() -> None:
    assert masked_mean(torch.tensor([[2.0, 4.0, 9.0]]), torch.tensor([[1.0, 1.0, 0.0]])).item() == 3.0


def test_direct_preference_optimisation_is_bradley_terry_on_log_ratios() -> None:
    # The policy says the chosen one e times as often as SFT and the other half as often: beta * (1 + log 2).
    chosen_B = implicit_rewards(torch.tensor([-4.0]), torch.tensor([-5.0]), beta=0.5)
    rejected_B = implicit_rewards(torch.tensor([-3.0 - math.log(2)]), torch.tensor([-3.0]), beta=0.5)
    torch.testing.assert_close(chosen_B - rejected_B, torch.tensor([0.5 * (1 + math.log(2))]))
    loss = math.log1p(math.exp(-0.5 * (1 + math.log(2))))
    torch.testing.assert_close(preference_loss(chosen_B, rejected_B), torch.tensor([loss]))
    # The wrong way round it costs the difference more: -log sigmoid(-x) = x - log sigmoid(x).
    torch.testing.assert_close(preference_loss(rejected_B, chosen_B), torch.tensor([loss + 0.5 * (1 + math.log(2))]))


def test_a_policy_that_is_its_reference_earns_nothing_and_pays_log_two() -> None:
    rewards_B = implicit_rewards(torch.tensor([-7.0, -1.0]), torch.tensor([-7.0, -1.0]), beta=0.1)
    assert rewards_B.tolist() == [0.0, 0.0]
    assert preference_loss(rewards_B[:1], rewards_B[1:]).item() == pytest.approx(math.log(2))


def test_divergence_is_summed_over_the_vocabulary() -> None:
    # 1/2 log(1/2 : 1/4) + 1/2 log(1/2 : 3/4), and nothing where both agree.
    log_probs_NV = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    reference_NV = torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    torch.testing.assert_close(divergence(log_probs_NV, reference_NV), torch.tensor([expected, 0.0]))
